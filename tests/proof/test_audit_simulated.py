"""The continuous verifier of a simulated log and real tables: no broker, and no wait but its own turns.

`test_audit.py` shows the same parts on a real broker, while work goes on.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.proof.audit.auditor import Auditor, Standing
from onefold.proof.audit.live import Live, Row
from onefold.proof.audit.pace import Pace
from onefold.proof.audit.tables import Tables
from onefold.proof.audit.versions import Versions
from onefold.proof.expect import Table
from onefold.proof.outputs import Written
from onefold.proof.verdict import INVALID, UNKNOWN, VALID, Finding
from onefold.proof.workloads import campaigns
from onefold.proof.workloads.shaping import Input, Shape
from tests.support.simulated_stage import SimulatedStage
from tests.support.stage import ChangedRule

COUNT = 120
TOTALS, SENDS = campaigns.WORKLOAD.outputs.values()
# No campaign of the generator's.
NEW = 2**31 - 1
TURNS_MAX = 200
# It looks at the tables in each turn.
EACH_TURN = Pace(look_every_s=0.0, look_every_max_s=0.0)


@pytest.fixture
def stage(database: str, monkeypatch: pytest.MonkeyPatch) -> SimulatedStage:
    monkeypatch.setattr(ChangedRule, "changed", None)
    made = SimulatedStage(database, replace(campaigns.WORKLOAD, model=ChangedRule))
    play(made, 1)
    return made


@pytest.fixture
def auditor(stage: SimulatedStage) -> Iterator[Auditor]:
    """It has found everything right so far."""
    with closing(of(stage)) as made:
        assert ran(made, whole).outcome == VALID, made.standing
        yield made


def of(stage: SimulatedStage, pace: Pace = EACH_TURN, **more: Any) -> Auditor:
    return Auditor(stage.workload.name, client={}, dsn=stage.dsn, kafka=stage.kafka, pace=pace, **more)


def play(stage: SimulatedStage, seed: int) -> None:
    stage.play(campaigns.generate(seed, COUNT, shape=Shape(hostile=0.05, keyless=0.05), campaigns=20))


def whole(standing: Standing) -> bool:
    return standing.cycle_s is not None and standing.outcome != UNKNOWN


def ran(auditor: Auditor, enough: Callable[[Standing], bool]) -> Standing:
    """Takes turns until it is enough."""
    turns = iter(range(TURNS_MAX))
    standing = auditor.run(lambda standing: None, lambda pause: next(turns, None) is None, enough)
    assert enough(standing), standing
    return standing


def named(auditor: Auditor) -> list[Finding]:
    """All that it finds until it finds something."""
    before = len(auditor.standing.findings)
    standing = ran(auditor, lambda standing: len(standing.findings) > before)
    assert standing.outcome == INVALID
    return standing.findings[before:]


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute(statement.encode()).rowcount in (1, -1)  # -1: no rows are meant


def test_what_goes_on_rightly_stays_valid_and_each_output_is_judged_once(
    stage: SimulatedStage, auditor: Auditor
) -> None:
    records = auditor.standing.records
    before = sum(stage.log.identity(table.topic, p).end for table in (TOTALS, SENDS) for p in (0, 1))
    play(stage, 2)
    outputs = sum(stage.log.identity(table.topic, p).end for table in (TOTALS, SENDS) for p in (0, 1)) - before
    standing = ran(auditor, lambda standing: standing.judged >= outputs and standing.waiting == 0)
    assert (standing.outcome, standing.findings, standing.judged) == (VALID, [], outputs)
    assert standing.records > records + COUNT


def test_a_changed_rule_is_named_by_its_first_output(
    stage: SimulatedStage, auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_too_many(value: dict[str, Any]) -> bool:
        value["sent"] += 1
        return True

    monkeypatch.setattr(ChangedRule, "changed", staticmethod(one_too_many))
    value = b'{"id": %d, "email": "A", "subject": "s", "sent": 7, "date": "2021-12-01 12:00:00"}' % NEW
    stage.play([Input(campaigns.TOPIC, b"%d" % NEW, value)])
    assert {(found.kind, found.key["id"]) for found in named(auditor)} >= {("wrong output", NEW)}


def test_what_the_processor_has_not_said_it_took_is_read_and_waits(database: str) -> None:
    """Of an empty partition there is nothing to read, and a record before any progress is nobody's yet."""
    stage = SimulatedStage(database, campaigns.WORKLOAD)
    with closing(of(stage)) as auditor:
        assert ran(auditor, whole).findings == []
    stage.log.append(campaigns.TOPIC, b"1", b"junk", partition=0)
    with closing(of(stage)) as auditor:
        standing = ran(auditor, lambda standing: standing.records == 1)
        assert (standing.waiting, standing.findings) == (1, [])
        assert standing.counts["records"] == 0


def test_what_the_client_hands_over_of_a_task_that_has_said_nothing_waits(database: str) -> None:
    """The client reads all partitions, also while only another one's progress is read up to."""
    stage = SimulatedStage(database, campaigns.WORKLOAD)
    stage.reporting = [0]  # the other task has not begun
    stage.log.append(campaigns.TOPIC, b"1", b"junk", partition=1)
    stage.play([Input(campaigns.TOPIC, None, b"junk")])
    with closing(of(stage)) as auditor:
        standing = ran(auditor, whole)
        assert (standing.waiting, standing.findings) == (1, [])


def test_results_beyond_the_progress_at_its_start_are_judged_when_the_progress_comes(stage: SimulatedStage) -> None:
    """The processor wrote them after its last progress that was read, in a transaction that was committed meanwhile."""
    report, reported = stage.report_progress, []
    stage.report_progress = lambda **counts: reported.append(counts)  # type: ignore[method-assign]  # for a while
    fill, filled = stage._fill_tables, []
    stage._fill_tables = lambda: filled.append(1)  # type: ignore[method-assign]  # for a while
    play(stage, 2)
    with closing(of(stage)) as auditor:
        standing = ran(auditor, lambda standing: standing.waiting > 0)
        assert (standing.judged, standing.findings) == (0, [])
        report()
        fill()
        standing = ran(auditor, lambda standing: standing.waiting == 0)
        assert (standing.outcome, standing.findings) == (VALID, [])
        assert standing.judged > 0


def test_states_of_another_number_of_partitions_are_no_ground_for_a_verdict(
    stage: SimulatedStage, auditor: Auditor
) -> None:
    stage.log.append(f"{stage.workload.name}.changelog", b"p", json.dumps({"partitions": 3}).encode(), partition=0)
    standing = ran(auditor, lambda standing: standing.outcome == UNKNOWN)
    assert "are of 3 partitions" in standing.reason


def test_a_column_of_another_type_is_named_at_the_start(stage: SimulatedStage) -> None:
    execute(stage.dsn, f'ALTER TABLE {TOTALS.name} ALTER COLUMN "partition" TYPE bigint')
    with closing(of(stage)) as auditor:
        standing = ran(auditor, lambda standing: bool(standing.findings))
        assert (standing.findings[0].kind, standing.findings[0].where) == ("wrong column", TOTALS.name)


@pytest.mark.parametrize("right", [True, False])
def test_it_leaves_what_is_valid_to_the_next_and_nothing_else(
    stage: SimulatedStage, tmp_path: Path, right: bool
) -> None:
    pace = replace(EACH_TURN, leave_every_s=0.0)
    if not right:
        execute(stage.dsn, f"UPDATE {TOTALS.name} SET sent_1 = sent_1 + 1 WHERE id = 1")
    with closing(of(stage, pace, checkpoints=tmp_path)) as auditor:
        assert (ran(auditor, whole).outcome == VALID) == right
    assert any(path.is_file() for path in tmp_path.rglob("*")) == right


class Asked(Live):
    """Notes the keys that are asked for; PostgreSQL may hide what is new."""

    keys: list[Row]
    hides = False

    def newer(self, table: Table, horizon: str) -> Iterator[Row]:
        return iter(()) if self.hides else super().newer(table, horizon)

    def by_keys(self, table: Table, keys: Iterable[Row]) -> Iterator[Row]:
        asked = [*keys]
        self.keys = [*getattr(self, "keys", []), *asked]
        return super().by_keys(table, asked)


def tables_of(stage: SimulatedStage) -> tuple[Tables, Versions]:
    """As a verifier has them that has read all, and whose sink has written all."""
    rows = stage.expected.model.rows
    last = {
        table.name: {
            key: Written(*stage.place[table.name, key], source) for key, (_, source) in rows[table.name].items()
        }
        for table in stage.workload.outputs.values()
    }
    versions = Versions(stage.workload, rows, last)
    return Tables(stage.workload, versions), versions


def look(tables: Tables, dsn: str, *, hides: bool = False) -> tuple[list[tuple[str, str, Any]], list[Row]]:
    """(kind, table, id) of each finding, and the keys that were asked for."""
    with Asked(dsn) as snapshot:
        snapshot.hides = hides
        found = [(one.kind, one.where, (one.key or {}).get("id")) for one in tables.look(snapshot, 1.0)]
        return found, getattr(snapshot, "keys", [])


@pytest.mark.parametrize("table", [TOTALS, SENDS], ids=lambda table: str(table.name))
def test_every_row_of_every_table_is_compared_at_the_first_look_and_again(stage: SimulatedStage, table: Table) -> None:
    """Also where PostgreSQL says that nothing is new, as of a row that a disk has changed."""
    column = "sent_1" if table is TOTALS else "sent"
    tables, _ = tables_of(stage)
    assert look(tables, stage.dsn) == ([], [])
    assert look(tables, stage.dsn, hides=True) == ([], [])
    execute(
        stage.dsn, f"UPDATE {table.name} SET {column} = {column} + 1 WHERE ctid = (SELECT min(ctid) FROM {table.name})"
    )
    [(kind, where, _)], _ = look(tables, stage.dsn, hides=True)
    assert (kind, where) == ("different row", table.name)
    [again], _ = look(tables_of(stage)[0], stage.dsn)
    assert again[:2] == ("different row", table.name)


def test_one_row_that_is_gone_or_too_many_is_one_finding(stage: SimulatedStage) -> None:
    tables, _ = tables_of(stage)
    assert look(tables, stage.dsn) == ([], [])
    execute(stage.dsn, f"DELETE FROM {TOTALS.name} WHERE id = 2")
    assert look(tables, stage.dsn)[0] == [("missing row", TOTALS.name, 2)]
    assert look(tables, stage.dsn)[0] == []


def test_a_row_that_has_landed_is_asked_for_by_its_key_only_if_it_is_not_new(stage: SimulatedStage) -> None:
    tables, versions = tables_of(stage)
    look(tables, stage.dsn)
    execute(stage.dsn, f"UPDATE {TOTALS.name} SET id = id WHERE id = 1")
    versions.changed[TOTALS.name] |= {(1,), (2,)}
    assert look(tables, stage.dsn) == ([], [(2,)])
