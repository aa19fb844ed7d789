"""The judge of a simulated log and real tables: what has not drained is unknown, and what is wrong is invalid."""

import gc
import json
from contextlib import suppress
from typing import Any, LiteralString

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.verify.judge import seldom
from onefold.verify.log import Log
from onefold.verify.outcomes import Fate
from onefold.verify.record import Source
from onefold.verify.verdict import INVALID, KINDS, UNKNOWN, VALID, CannotTell, Check, Finding, decide
from onefold.workloads import averages, runner, trades
from onefold.workloads.shaping import StreamShape
from tests.support.coded import raises
from tests.support.simulated_stage import SimulatedStage
from tests.support.stage import PARTITIONS

PYTHONS_OWN = 700  # threshold of the collector of garbage
WRONG = [Finding(next(iter(KINDS)), "somewhere")]


@pytest.mark.parametrize(
    ("findings", "holdup", "still", "outcome"),
    [
        ([], "", True, VALID),
        ([], "", False, VALID),  # what came meanwhile was not asked about
        (WRONG, "", True, INVALID),
        (WRONG, "", False, UNKNOWN),  # the rows may be of what came meanwhile
        ([], "a transaction is open", True, UNKNOWN),
        ([], "a transaction is open", False, UNKNOWN),
        (WRONG, "a transaction is open", True, UNKNOWN),
        (WRONG, "a transaction is open", False, UNKNOWN),
    ],
)
def test_only_what_has_drained_and_stood_still_is_invalid(
    findings: list[Finding], holdup: str, still: bool, outcome: str
) -> None:
    found, reason, code = decide(findings, holdup, still)
    assert found == outcome
    assert code == (str(Code.NOT_DRAINED) if outcome == UNKNOWN else "")
    assert holdup in reason


@pytest.fixture
def stage(module_database: str) -> SimulatedStage:
    made = SimulatedStage(module_database, runner.WORKLOAD)
    made.play(runner.generate(3, 120, shape=StreamShape(hostile=0.05, keyless=0.1), users=12))
    return made


def change(stage: SimulatedStage, statement: LiteralString, *values: Any) -> None:
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        assert connection.execute(statement, values).rowcount == 1


def kinds(stage: SimulatedStage) -> dict[str, int]:
    verdict = stage.judge()
    assert verdict.outcome == INVALID, verdict.reason
    return verdict.kinds()


def test_a_faultless_result_is_valid_and_everything_was_counted(stage: SimulatedStage) -> None:
    verdict = stage.judge()
    assert (verdict.outcome, verdict.findings) == (VALID, [])
    assert verdict.counts["records"] == len(stage.originals) + stage.expected.counts.repartitioned
    assert all(check.expected == check.found for check in verdict.checks)
    assert verdict.offsets["runner.updates"] == {p: stage.log.stable("runner.updates", p) for p in (0, 1)}


@pytest.mark.parametrize("partition", [0, 1])
def test_a_record_that_the_processor_has_not_read_is_unknown(stage: SimulatedStage, partition: int) -> None:
    end = stage.log.append("runner.updates", b"x", b"junk", partition=partition)
    verdict = stage.judge()
    assert verdict.outcome == UNKNOWN
    assert f"runner.updates/{partition} up to {end} of {end + 1}" in verdict.reason


def test_the_first_record_of_all_that_the_processor_has_not_read_is_unknown(module_database: str) -> None:
    stage = SimulatedStage(module_database, runner.WORKLOAD)
    stage.log.append("runner.updates", b"x", b"junk", partition=0)
    verdict = stage.judge()
    assert verdict.outcome == UNKNOWN
    assert "runner.updates/0 up to 0 of 1" in verdict.reason


@pytest.mark.parametrize("topic", ["runner.updates", "runner.stats", "runner.updates.dead", "runner.changelog"])
def test_an_open_transaction_is_unknown_wherever_it_is(stage: SimulatedStage, topic: str) -> None:
    epoch = stage.log.init("somebody")
    stage.log.write("somebody", epoch, topic, 1, b"p", b"{}", ())
    verdict = stage.judge()
    assert (verdict.outcome, verdict.as_data()["code"]) == (UNKNOWN, "OF-506")
    assert f"{topic}/1" in verdict.reason


@pytest.mark.parametrize("topic", ["runner.stats", "runner.messages", "runner.tendency"])
@pytest.mark.parametrize("partition", [0, 1])
def test_a_sink_that_is_one_offset_behind_is_unknown(stage: SimulatedStage, topic: str, partition: int) -> None:
    behind = "UPDATE onefold.ledger SET next_offset = next_offset - 1 WHERE topic = %s AND partition = %s"
    change(stage, behind, topic, partition)
    verdict = stage.judge()
    assert verdict.outcome == UNKNOWN
    assert f"{topic}/{partition} up to" in verdict.reason


@pytest.mark.parametrize("which", ["changelog", "ledger"])
def test_a_topic_that_was_made_anew_is_no_verdict(stage: SimulatedStage, which: str) -> None:
    """Its offsets are those of other records."""
    if which == "ledger":
        change(stage, "UPDATE onefold.ledger SET topic_id = 'old' WHERE topic = 'runner.stats' AND partition = 1")
    else:
        entry = stage.log.read("runner.changelog", 1, 0)[0][-1][1]
        told = (entry.value or b"").replace(stage.log.identity("runner.updates", 0).topic_id.encode(), b"old")
        stage.log.append("runner.changelog", b"p", told, partition=1)
    with raises(CannotTell, Code.TOPIC_RECREATED):
        stage.judge()


def test_a_log_whose_beginning_is_gone_is_no_verdict(stage: SimulatedStage) -> None:
    stage.log.truncate("runner.updates", 0, 1)
    with raises(CannotTell, Code.RECORDS_DELETED, "runner.updates/0"):
        stage.judge()
    stage.log.truncate("runner.updates", 0, 0)
    stage.log.truncate("runner.changelog", 0, 1)  # of which only what is last in it counts
    assert stage.judge().outcome == UNKNOWN


@pytest.mark.parametrize("difference", [-1, 1])
@pytest.mark.parametrize("name", ["accepted", "ignored", "forwarded", "dead"])
def test_the_processors_own_counts_are_judged(stage: SimulatedStage, name: str, difference: int) -> None:
    counts = stage.expected.counts.as_stored()
    stage.report_progress(**{name: counts[name] + difference})
    (found,) = stage.judge().findings
    assert (found.kind, found.columns) == ("wrong count", {name: (counts[name], counts[name] + difference)})


def test_what_records_explain_that_compaction_may_have_deleted_is_unknown(stage: SimulatedStage) -> None:
    """Where nothing else is wrong; and only for an input that is compacted."""
    change(stage, "UPDATE runner.stats SET total_meters = 1 WHERE ctid = (SELECT min(ctid) FROM runner.stats)")
    stage.log.compacted = {"runner.changelog"}
    assert kinds(stage) == {"different row": 1}
    stage.log.compacted = {"runner.changelog", "runner.updates"}
    verdict = stage.judge()
    assert (verdict.outcome, verdict.code) == (UNKNOWN, str(Code.RECORDS_DELETED))
    assert "runner.updates is compacted" in verdict.reason
    assert verdict.kinds() == {"different row": 1}
    ahead = "UPDATE onefold.ledger SET next_offset = next_offset + 1 WHERE topic = 'runner.stats' AND partition = 1"
    change(stage, ahead)
    assert kinds(stage) == {"different row": 1, "wrong ledger": 1}, "no record of the input can explain a ledger"


def test_a_copy_that_is_doubled_or_needless_is_found(stage: SimulatedStage) -> None:
    for fate, partition_after in ((Fate.REPARTITIONED, 1), (Fate.ACCEPTED, 0)):
        source = next(source for source in stage.originals if stage.expected.fate(source) == fate)
        stage.copy(source, (source.partition + partition_after) % PARTITIONS, b"whatever")
    stage.report_progress()
    assert kinds(stage)["doubled copy"] == 2


def test_what_was_asked_about_is_valid_though_input_arrives(stage: SimulatedStage) -> None:
    """It is not waited for what comes meanwhile, also where there is time."""

    def arrives(what: str) -> None:
        if what == "comparing":
            stage.log.append("runner.updates", b"x", b"junk", partition=0)

    verdict = stage.judge(arrives, timeout_s=20.0)
    assert (verdict.outcome, verdict.findings) == (VALID, [])


def test_each_invariant_is_a_check_of_the_verdict(module_database: str) -> None:
    """Kept or broken: how many rows break it."""
    stage = SimulatedStage(module_database, trades.WORKLOAD)
    stage.play(trades.generate(3, 40))
    assert Check("invariant trades.levels_add_up", 0, 0) in stage.judge().checks
    total = "risk_type IS NULL AND region IS NULL AND trade_desk IS NULL"
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute(f"UPDATE trades.risk SET trades = trades + 1 WHERE {total}")
    (broken,) = [check for check in stage.judge().checks if check.what == "invariant trades.levels_add_up"]
    assert (broken.expected, broken.found > 0) == (0, True)


def test_rows_that_differ_while_input_arrives_are_unknown(stage: SimulatedStage) -> None:
    """They may be of what has come meanwhile. Without it, they are wrong."""
    change(stage, "DELETE FROM runner.stats WHERE ctid = (SELECT min(ctid) FROM runner.stats)")

    def arrives(what: str) -> None:
        if what == "comparing":
            stage.log.append("runner.updates", b"x", b"junk", partition=0)

    assert kinds(stage) == {"missing row": 1}
    assert stage.judge(arrives).outcome == UNKNOWN


def test_an_unread_log_proves_nothing() -> None:
    """Its broker does not answer."""
    with raises(CannotTell, Code.KAFKA_SILENT, "127.0.0.1:9"):
        Log({"bootstrap.servers": "127.0.0.1:9"}, ["runner.updates"], answer_s=0.2)


class OrderedStage(SimulatedStage):
    """Of a pipeline with two inputs, whose processor writes down in which order it reads them."""

    @property
    def topics(self) -> list[str]:
        """With that of the order."""
        return [*super().topics, f"{self.workload.name}.order"]

    def order(self, skipped: Source | None = None) -> None:
        """Write the order down: that in which the inputs came, without the one that is skipped. All is one transaction: of a
        row the stage writes the last output record alone.
        """
        runs: dict[int, list[Any]] = {}
        for source in self.originals:
            if source != skipped:
                runs.setdefault(source.partition, []).append([source.topic, source.offset, source.offset + 1])
        for partition, several in runs.items():
            body = json.dumps({"version": 1, "runs": several}).encode()
            self.log.append(f"{self.workload.name}.order", b"o", body, partition=partition)


@pytest.mark.parametrize("place", ["first", "between others", "last"])
def test_a_record_that_a_pipeline_of_two_inputs_has_lost_for_good_is_wrong(module_database: str, place: str) -> None:
    """The progress says that it was read; the order of the inputs leaves it out."""
    stage = OrderedStage(module_database, averages.WORKLOAD)
    stage.play(averages.generate(3, 60))
    of_one = [source for source in stage.originals if source[:2] == next(iter(stage.originals))[:2]]
    lost = of_one[{"first": 0, "between others": 1, "last": -1}[place]]
    stage.order(skipped=lost)
    fate = {Fate.ACCEPTED: "accepted", Fate.IGNORED: "ignored"}[stage.expected.fate(lost)]
    stage.report_progress(**{fate: stage.expected.counts.as_stored()[fate] - 1})
    verdict = stage.judge()
    assert verdict.outcome == INVALID
    found = [one for one in verdict.findings if one.kind == "skipped input"]
    assert [(one.where, one.source) for one in found] == [(lost.topic, str(lost))]


@pytest.mark.parametrize("at", [0, 1])
def test_a_record_that_was_processed_without_an_order_is_unknown(module_database: str, at: int) -> None:
    """As by a version of the pipeline with one input, between two with both: the processor has counted the record."""
    stage = OrderedStage(module_database, averages.WORKLOAD)
    stage.play(averages.generate(3, 60))
    lost = [source for source in stage.originals if source[:2] == next(iter(stage.originals))[:2]][at]
    stage.order(skipped=lost)
    verdict = stage.judge()
    assert verdict.outcome == UNKNOWN
    told = [
        f"the recorded merge order of {lost.topic}/{lost.partition} is missing from offset 0 on",
        f"the recorded merge order leaves out records that were processed, the first one at {lost}",
    ]
    assert told[at] in verdict.reason


def test_a_pipeline_of_two_inputs_is_valid_in_its_order(module_database: str) -> None:
    stage = OrderedStage(module_database, averages.WORKLOAD)
    stage.play(averages.generate(3, 60))
    stage.order()
    assert stage.judge().outcome == VALID


def test_cycles_of_objects_are_looked_for_seldom_while_it_runs() -> None:
    """And as before afterwards, also after an error."""
    before = gc.get_threshold()
    with suppress(KeyError), seldom():
        assert gc.get_threshold()[0] > 100 * PYTHONS_OWN  # an earlier test may have run a processor, which has others
        raise KeyError
    assert gc.get_threshold() == before
