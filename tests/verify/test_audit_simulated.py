"""The continuous verifier of a simulated log and real tables: no broker, and no wait but its own turns.

`test_audit.py` shows the same parts on a real broker, while work goes on.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.verify.audit import auditor as auditor_of
from onefold.verify.audit.auditor import Auditor, AuditStatus
from onefold.verify.audit.pace import Pace
from onefold.verify.audit.tables import Tables
from onefold.verify.audit.versions import Versions
from onefold.verify.expect import Table
from onefold.verify.objects import ObjectReader
from onefold.verify.outputs import LastOutput
from onefold.verify.snapshot import DatabaseSnapshot, Row
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Finding
from onefold.workloads import campaigns, trades
from onefold.workloads.shaping import Input, StreamShape
from tests.support.simulated_stage import JudgesLog, SimulatedStage
from tests.support.stage import PARTITIONS, ChangedRule

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
    stage.play(campaigns.generate(seed, COUNT, shape=StreamShape(hostile=0.05, keyless=0.05), campaigns=20))


def whole(standing: AuditStatus) -> bool:
    return standing.cycle_s is not None and standing.outcome != UNKNOWN


def ran(auditor: Auditor, enough: Callable[[AuditStatus], bool]) -> AuditStatus:
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
    play(stage, 2)
    outputs = sum(stage.log.identity(table.topic, p).end for table in (TOTALS, SENDS) for p in (0, 1))
    standing = ran(auditor, lambda standing: standing.judged >= outputs and standing.waiting == 0)
    assert (standing.outcome, standing.findings, standing.judged) == (VALID, [], outputs)
    assert standing.records > records + COUNT


def test_a_verifier_that_has_not_begun_has_read_and_compared_nothing() -> None:
    """Its database is away."""
    with closing(Auditor("campaigns", client={}, dsn="host=127.0.0.1 port=9")) as auditor:
        standing = ran(auditor, lambda standing: standing.troubled)
    assert standing.code == str(Code.POSTGRES_SILENT)
    assert (standing.records, standing.judged, standing.rows, standing.waiting, standing.reads, standing.more) == (
        0,
    ) * 6


def test_a_verifier_that_is_behind_gives_no_verdict_on_the_present(stage: SimulatedStage) -> None:
    """It says so, until it is near again."""
    with closing(of(stage, replace(EACH_TURN, behind_s=-1.0))) as auditor:
        standing = ran(auditor, lambda standing: standing.cycle_s is not None and "behind" in standing.reason)
    assert (standing.outcome, standing.findings) == (UNKNOWN, [])


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
        assert standing.findings == []
        before = standing.judged
        report()
        fill()
        standing = ran(auditor, lambda standing: standing.waiting == 0)
        assert (standing.outcome, standing.findings) == (VALID, [])
        assert standing.judged > before


def test_a_topic_that_was_made_anew_ends_the_run(stage: SimulatedStage) -> None:
    with closing(of(stage)) as auditor:
        auditor.run(lambda standing: None, lambda pause: True, lambda standing: False)
        stage.log.create(f"{stage.workload.name}.changelog", PARTITIONS)
        standing = ran(auditor, lambda standing: "recreated" in standing.reason)
        assert (standing.outcome, standing.findings) == (UNKNOWN, [])


def test_what_is_wrong_with_a_topic_that_was_made_anew_meanwhile_is_not_named(
    stage: SimulatedStage, auditor: Auditor
) -> None:
    """Rows and records of a pipeline that is started over go one after the other."""
    execute(stage.dsn, f"DELETE FROM {TOTALS.name} WHERE id = 1")
    stage.log.create(f"{stage.workload.name}.changelog", PARTITIONS)
    standing = ran(auditor, lambda standing: "recreated" in standing.reason)
    assert (standing.outcome, standing.findings) == (UNKNOWN, [])


class Made(campaigns.CampaignsModel):
    """The model of a pipeline whose workers make objects, one of which is not there."""

    def follow_made(self, store: ObjectReader) -> Callable[[], Iterable[Finding]]:
        """One finding a look."""
        return lambda: [Finding("missing object", "objects")]


def test_what_is_wrong_with_objects_is_named(
    stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = replace(campaigns.WORKLOAD, model=Made, made=True)
    monkeypatch.setattr(auditor_of, "workload", lambda domain: work)
    with closing(of(stage, objects=tmp_path.as_uri())) as auditor:
        assert [(one.kind, one.where) for one in named(auditor)] == [("missing object", "objects")]


def test_a_verifier_that_is_closed_has_closed_its_consumer(
    stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[JudgesLog]()
    monkeypatch.setattr(JudgesLog, "close", lambda log: closed.append(log))
    auditor = of(stage)
    ran(auditor, whole)
    before = len(closed)  # another consumer reads the progress at the start
    auditor.close()
    assert len(closed) == before + 1


FIRST = f"(id, date) = (SELECT id, date FROM {SENDS.name} ORDER BY id, date LIMIT 1)"
ANOTHER = (
    f'INSERT INTO {SENDS.name} (id, date, sent, email, subject, version, topic, partition, "offset")'
    f" SELECT id, date + interval '8 years', sent, email, subject, version, topic, partition, \"offset\" FROM {SENDS.name}"
    f" WHERE {FIRST}"
)
IN_LEDGER = f"onefold.ledger SET {{}} WHERE topic = '{TOTALS.topic}' AND partition = 1"


@pytest.mark.promise("audit-names-wrong")
@pytest.mark.parametrize(
    ("spoil", "named_as"),
    [
        (f"UPDATE {SENDS.name} SET sent = sent + 1 WHERE {FIRST}", [("different row", SENDS.name)]),
        (f"DELETE FROM {SENDS.name} WHERE {FIRST}", [("missing row", SENDS.name)]),
        (ANOTHER, [("extra row", SENDS.name)]),
        (
            f"WITH gone AS (DELETE FROM {SENDS.name} WHERE {FIRST}) {ANOTHER}",
            [("extra row", SENDS.name), ("missing row", SENDS.name)],
        ),
        (f'UPDATE {SENDS.name} SET "offset" = "offset" + 1 WHERE {FIRST}', [("wrong origin", SENDS.name)]),
        (f"UPDATE {SENDS.name} SET topic = 'another' WHERE {FIRST}", [("wrong origin", SENDS.name)]),
        ("DELETE FROM " + IN_LEDGER.replace(" SET {}", ""), [("wrong ledger", "onefold.ledger")]),
        ("UPDATE " + IN_LEDGER.format("next_offset = next_offset - 1"), [("wrong ledger", "onefold.ledger")]),
        ("UPDATE " + IN_LEDGER.format("next_offset = next_offset + 1"), [("wrong ledger", "onefold.ledger")]),
        ("UPDATE " + IN_LEDGER.format("topic_id = 'another'"), [("wrong ledger", "onefold.ledger")]),
    ],
    ids=[
        "changed",
        "gone",
        "made up",
        "another",
        "offset",
        "topic",
        "ledger gone",
        "behind",
        "ahead",
        "of another topic",
    ],
)
def test_what_sql_has_done_is_named_and_once(
    stage: SimulatedStage, auditor: Auditor, spoil: str, named_as: list[tuple[str, str]]
) -> None:
    execute(stage.dsn, spoil)
    named(auditor)
    turns = iter(range(5))
    standing = ran(auditor, lambda standing: next(turns, None) is None)
    assert sorted((found.kind, found.where) for found in standing.findings) == named_as
    keys = [found.key for found in standing.findings if found.kind == "wrong ledger"]
    assert keys == [{"topic": TOTALS.topic, "partition": 1}] * len(keys)


@pytest.mark.promise("audit-names-wrong")
def test_a_progress_that_is_ahead_of_the_log_is_named_once(stage: SimulatedStage, auditor: Auditor) -> None:
    """The processor would skip the next thousand inputs."""
    topic = stage.workload.inputs[0]
    for ahead in (1000, 1001):
        stage.ends[topic, 1] += ahead
        stage.report_progress()
        stage.ends[topic, 1] -= ahead
        turns = iter(range(5))
        standing = ran(auditor, lambda standing, turns=turns: next(turns, None) is None)  # type: ignore[misc]  # a default is how a loop's value is kept
    assert [(found.kind, found.where, found.key) for found in standing.findings] == [
        ("wrong progress", topic, {"topic": topic, "partition": 1})
    ]


TOTAL = "risk_type IS NULL AND region IS NULL AND trade_desk IS NULL"
MADE_UP_SUM = (
    'INSERT INTO trades.risk (risk_type, region, trade_desk, value, trades, topic, partition, "offset")'
    f" SELECT 'another', region, trade_desk, value, trades, topic, partition, \"offset\" FROM trades.risk WHERE {TOTAL}"
)


@pytest.mark.promise("audit-names-wrong")
@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (f"UPDATE trades.risk SET value = value + 1 WHERE {TOTAL}", "different row"),
        (f"UPDATE trades.risk SET trades = trades - 1 WHERE {TOTAL}", "different row"),
        (f"DELETE FROM trades.risk WHERE {TOTAL}", "missing row"),
        (
            MADE_UP_SUM,
            "extra row",
        ),
    ],
    ids=["value", "number", "gone", "made up"],
)
def test_what_is_wrong_with_sums_is_named(database: str, spoil: str, kind: str) -> None:
    stage = SimulatedStage(database, trades.WORKLOAD)
    stage.play(trades.generate(1, COUNT))
    with closing(of(stage)) as auditor:
        assert ran(auditor, whole).findings == []
        stage.play(trades.generate(2, COUNT))
        assert ran(auditor, lambda standing: standing.judged > 0 and standing.waiting == 0).findings == []
        execute(stage.dsn, spoil)
        found = [(one.kind, one.where) for one in named(auditor)]
    # A look at the rules of the tables, which is rarer, may find that the same row breaks them.
    assert [one for one in found if one[0] != "broken invariant"] == [(kind, "trades.risk")]


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


@pytest.mark.parametrize("often", [True, False])
def test_checkpoints_take_no_more_than_their_share_of_the_time(
    stage: SimulatedStage, tmp_path: Path, often: bool
) -> None:
    """Each checkpoint has a name of its own."""
    pace = replace(EACH_TURN, leave_every_s=0.0, leave_share=1e9 if often else 1e-9)
    with closing(of(stage, pace, checkpoints=tmp_path)) as auditor:
        assert ran(auditor, whole).outcome == VALID
        first = {path.name for path in tmp_path.rglob("*") if path.is_file()}
        play(stage, 2)
        assert ran(auditor, lambda standing: standing.waiting == 0).outcome == VALID
        ran(auditor, whole)
    assert first
    assert ({path.name for path in tmp_path.rglob("*") if path.is_file()} != first) == often


class Asked(DatabaseSnapshot):
    """Notes the keys that are asked for; PostgreSQL may hide what is new."""

    keys: list[Row]
    hides = False

    def newer(self, table: Table, horizon: str) -> list[Row]:
        return [] if self.hides else super().newer(table, horizon)

    def by_keys(self, table: Table, keys: Iterable[Row]) -> Iterator[Row]:
        asked = [*keys]
        self.keys = [*getattr(self, "keys", []), *asked]
        return super().by_keys(table, asked)


def tables_of(stage: SimulatedStage) -> tuple[Tables, Versions]:
    """As a verifier has them that has read all, and whose sink has written all."""
    rows = stage.expected.model.rows
    last = {
        table.name: {
            key: LastOutput(*stage.place[table.name, key], source) for key, (_, source) in rows[table.name].items()
        }
        for table in stage.workload.outputs.values()
    }
    versions = Versions(stage.workload, rows, last)
    return Tables(stage.workload, versions), versions


def look(
    tables: Tables, dsn: str, *, hides: bool = False, budget_s: float = 1.0
) -> tuple[list[tuple[str, str, Any]], list[Row]]:
    """(kind, table, id) of each finding, and the keys that were asked for."""
    with Asked(dsn) as snapshot:
        snapshot.hides = hides
        found = [(one.kind, one.where, (one.key or {}).get("id")) for one in tables.look(snapshot, budget_s)]
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


@pytest.mark.parametrize("table", [TOTALS, SENDS], ids=lambda table: str(table.name))
def test_a_large_table_is_read_whole_at_the_first_look_and_then_in_parts(stage: SimulatedStage, table: Table) -> None:
    """Without any time for it, a look reads one part. Every row comes round all the same."""
    # A transaction's own updates leave their predecessors where they are.
    bloat = f"UPDATE {table.name} SET email = email WHERE id % 2 = 0"
    execute(stage.dsn, f"DO $$ BEGIN FOR i IN 1..600 LOOP {bloat}; END LOOP; END $$")
    with DatabaseSnapshot(stage.dsn) as snapshot:
        assert snapshot.blocks(table) > 64
    began_at = time.monotonic()
    tables, _ = tables_of(stage)
    assert look(tables, stage.dsn, budget_s=0.0) == ([], [])
    rows = sum(len(stage.expected.model.rows[one.name]) for one in (TOTALS, SENDS))
    assert tables.rows == rows, "each once"
    assert tables.cycle_s is not None
    assert 0 < tables.cycle_s < time.monotonic() - began_at
    column = "sent_1" if table is TOTALS else "sent"
    spoiled = f"ctid = (SELECT max(ctid) FROM {table.name} WHERE {column} IS NOT NULL)"
    execute(stage.dsn, f"UPDATE {table.name} SET {column} = {column} + 1 WHERE {spoiled}")
    looks, found = 0, list[Any]()
    while not found:
        found, _ = look(tables, stage.dsn, hides=True, budget_s=0.0)
        looks += 1
        assert looks < 10, "it does not come round"
    assert [one[:2] for one in found] == [("different row", table.name)]
    assert looks > 1
    assert tables.rows < 3 * rows


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
