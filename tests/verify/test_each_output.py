"""Bugs that leave every row right, or that rows do not show: the judge of a simulated log and real tables names each.

A bug is planted in what the processor wrote; what it wrote later, and the tables, are as they should be.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.verify import matching
from onefold.verify import state as state_module
from onefold.verify.audit.auditor import Auditor
from onefold.verify.fates import Fate
from onefold.verify.placement import partition_of
from onefold.verify.record import Record, Source
from onefold.verify.state import begin, topics_of
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Finding
from onefold.workloads import runner
from onefold.workloads.runner import MESSAGES, STATS, TENDENCY
from onefold.workloads.shaping import Input
from tests.support.simulated_stage import SENT_MS, JudgesLog, SimulatedStage
from tests.support.stage import PARTITIONS

pytestmark = pytest.mark.promise("verify-finds-wrong")

place_of = partial(partition_of, partitions=PARTITIONS)
#: Two users of partition 1.
ONE, OTHER, *_ = (user for user in range(3000, 3020) if place_of(str(user)) == 1)


def update(user: int, sequence: int, metres: int = 100) -> Input:
    text = b'{"user_id": %d, "distance_meters": %d, "timestamp_utc": %d, "sequence_id": %d, "run_id": %d}'
    return Input(runner.TOPIC, b"%d" % user, text % (user, metres, 1000 * sequence, sequence, user))


@pytest.fixture
def stage(module_database: str) -> SimulatedStage:
    """Two users with an update each."""
    made = SimulatedStage(module_database, runner.WORKLOAD)
    made.play([update(ONE, 1), update(OTHER, 1)])
    return made


def planted(stage: SimulatedStage, inputs: list[Input], bug: Callable[..., str]) -> list[str]:
    """Play the inputs with a bug: it is called as `stage.write` is, and with the real one first. Where its records lie."""
    right, places = stage.write, list[str]()

    def write(*args: Any, **more: Any) -> str:
        places.append(bug(right, *args, **more))
        return places[-1]

    stage.write = write  # type: ignore[method-assign]  # that is the bug
    stage.play(inputs)
    stage.write = right  # type: ignore[method-assign]  # and here it ends
    return places


def found(stage: SimulatedStage) -> list[Finding]:
    verdict = stage.judge()
    assert verdict.outcome == (INVALID if verdict.findings else VALID), verdict.reason
    return verdict.findings


def test_without_a_bug_it_is_valid(stage: SimulatedStage) -> None:
    planted(stage, [update(ONE, 2)], lambda right, *args: right(*args))
    stage.play([update(ONE, 3)])
    assert found(stage) == []


def test_wrong_values_that_a_later_record_puts_right(stage: SimulatedStage) -> None:
    def bug(right: Any, table: Any, key: Any) -> str:
        values = stage.expected.model.rows[table.name][key][0]
        return str(right(table, key, values=(*values[:3], "wrong", *values[4:]) if table is TENDENCY else values))

    places = planted(stage, [update(ONE, 2)], bug)
    stage.play([update(ONE, 3)])
    (wrong,) = found(stage)
    assert (wrong.kind, wrong.where, wrong.key) == ("wrong output", "runner.tendency", {"user_id": ONE})
    assert wrong.output == places[1]
    assert [is_ for _, is_ in wrong.columns.values()] == ["wrong"]


def test_a_row_of_another_key_that_a_later_record_puts_right(stage: SimulatedStage) -> None:
    stage.play([update(ONE, 2)])
    _, source = stage.expected.model.rows["runner.tendency"][ONE,]
    place = stage.write(TENDENCY, (OTHER,), source)
    stage.play([update(OTHER, 2)])
    (phantom,) = found(stage)
    assert (phantom.kind, phantom.key, phantom.output) == ("phantom output", {"user_id": OTHER}, place)
    assert phantom.source == str(source)


@pytest.mark.parametrize("is_last", [True, False])
def test_an_output_record_under_another_key(stage: SimulatedStage, is_last: bool) -> None:
    """Compaction, and whoever joins the topic, goes by the Kafka key."""
    places = planted(stage, [update(ONE, 2)], lambda right, *args: right(*args, kafka_key=b"x"))
    if not is_last:
        stage.play([update(ONE, 3)])
    wrong = found(stage)
    assert [one.kind for one in wrong] == ["wrong output"] * 3
    assert [one.output for one in wrong] == places
    assert wrong[0].columns == {"Kafka key": (str(ONE), "x")}


@pytest.mark.parametrize("is_last", [True, False])
def test_an_output_record_in_another_partition(stage: SimulatedStage, is_last: bool) -> None:
    planted(stage, [update(ONE, 2)], lambda right, *args: right(*args, partition=0))
    if not is_last:
        stage.play([update(ONE, 3)])
    wrong = {(one.kind, one.where) for one in found(stage) if "Kafka partition" in one.columns}
    assert wrong == {("wrong output", topic) for topic in ("runner.stats", "runner.tendency", "runner.messages")}


@pytest.mark.parametrize("partitions_before", [1, 2])
def test_records_from_before_a_partition_was_added_lie_right(module_database: str, partitions_before: int) -> None:
    """As the sink takes it: an output topic gets another partition while the pipeline goes on."""
    stage = SimulatedStage(module_database, runner.WORKLOAD)
    users = range(3000, 3020)

    def before(right: Any, table: Any, key: Any) -> str:
        _, source = stage.expected.model.rows[table.name][key]
        return str(right(table, key, partition=partition_of(stage.keys[source], partitions_before)))

    planted(stage, [update(user, 1) for user in users], before)
    stage.play([update(user, 2) for user in users])
    assert found(stage) == []


@pytest.mark.parametrize("dropped", ["one", "all"])
def test_output_records_that_were_never_written(stage: SimulatedStage, dropped: str) -> None:
    """As by a publisher of replicas that leaves some out. The table is as the topic has it."""

    def bug(right: Any, table: Any, key: Any) -> str:
        if table is not TENDENCY or (dropped == "one" and key == (OTHER,)):
            return str(right(table, key))
        stage.place[table.name, key] = 0, 0
        return ""

    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.was AS SELECT * FROM runner.tendency")
        planted(stage, [update(ONE, 2), update(OTHER, 2)], bug)
        connection.execute(
            'DELETE FROM runner.tendency t USING public.was w WHERE (t.topic, t."offset") = (w.topic, 0)'
        )
        connection.execute(
            "INSERT INTO runner.tendency SELECT * FROM public.was WHERE user_id NOT IN (SELECT user_id FROM"
            " runner.tendency)"
        )
        connection.execute("DROP TABLE public.was")
    missing = {(one.where, one.key["user_id"]) for one in found(stage) if one.kind == "missing output"}
    assert missing == {("runner.tendency", user) for user in ([ONE] if dropped == "one" else [ONE, OTHER])}


def copied(stage: SimulatedStage, **changed: Any) -> tuple[Source, str]:
    """An update in the wrong partition, and its copy with something changed; the original, and where the copy lies."""
    right, places = stage.copy, list[str]()

    def copy(source: Source, partition: int, key: bytes, *_: Any) -> Any:
        record = right(source, partition, key, **changed)
        places.append(str(Source(*record[:3])))
        return record

    vars(stage)["copy"] = copy
    at = len(stage.originals)
    elsewhere = next(name for name in ("a", "b", "c") if place_of(name) == 0).encode()
    stage.play([update(ONE, 2)._replace(key=elsewhere)])
    del vars(stage)["copy"]
    return list(stage.originals)[at], places[0]


def test_a_copy_with_the_time_and_the_headers_of_its_original_is_right(stage: SimulatedStage) -> None:
    original, _ = copied(stage)
    assert stage.expected.fate(original) == Fate.REPARTITIONED
    assert found(stage) == []


@pytest.mark.parametrize(
    ("changed", "column"),
    [
        ({"sent": b"0"}, "onefold-timestamp"),
        ({"traced": []}, "headers"),
        ({"traced": [("traceparent", b"00-9-9-01")]}, "headers"),
        ({"traced": [("traceparent", b"00-1-2-01"), ("more", b"")]}, "headers"),
    ],
)
def test_a_copy_that_loses_time_or_headers_of_its_original(
    stage: SimulatedStage, changed: dict[str, Any], column: str
) -> None:
    original, place = copied(stage, **changed)
    (wrong,) = found(stage)
    assert (wrong.kind, wrong.output, wrong.source) == ("wrong output", place, str(original))
    assert list(wrong.columns) == [column]


class Timed(runner.Model):
    """A model that goes by when a record was sent, and by its headers."""

    record: Any = None
    seen: list[tuple[int, list[Any]]]

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take the update."""
        self.seen.append((self.record.timestamp_ms, self.record.headers))
        return super().apply(value, source)


def test_a_model_knows_when_a_record_was_sent_and_its_headers(module_database: str) -> None:
    """Of a copy as of its original, as handlers do."""
    stage = SimulatedStage(module_database, replace(runner.WORKLOAD, model=Timed))
    stage.play([update(ONE, 1)])
    copied(stage)
    model: Any = stage.expected.model
    traced = [("traceparent", b"00-1-2-01")]
    assert model.seen == [(SENT_MS, traced), (SENT_MS + 1, traced)]


class Plain(runner.Model):
    """A model whose rows do not note their changes, as one of an earlier version."""

    def __init__(self) -> None:
        super().__init__()
        self._stats, self._tendency, self._messages = {}, {}, {}  # type: ignore[assignment]  # as they were
        self.rows = {STATS.name: self._stats, TENDENCY.name: self._tendency, MESSAGES.name: self._messages}


@pytest.fixture
def plain(module_database: str, monkeypatch: pytest.MonkeyPatch) -> SimulatedStage:
    """Two users with an update each, for such a model."""
    monkeypatch.setattr(runner, "WORKLOAD", replace(runner.WORKLOAD, model=Plain))
    made = SimulatedStage(module_database, runner.WORKLOAD)
    made.play([update(ONE, 1), update(OTHER, 1)])
    return made


def test_of_a_model_with_plain_rows_output_records_are_read_first(plain: SimulatedStage) -> None:
    def bug(right: Any, table: Any, key: Any) -> str:
        values = plain.expected.model.rows[table.name][key][0]
        return str(right(table, key, values=(*values[:3], "wrong", *values[4:]) if table is TENDENCY else values))

    places = planted(plain, [update(ONE, 2)], bug)
    plain.play([update(ONE, 3)])
    assert [(one.kind, one.output) for one in found(plain)] == [("wrong output", places[1])]


def test_what_was_read_too_late_for_plain_rows_is_counted(plain: SimulatedStage) -> None:
    """As in a verification that waits for a pipeline to drain: the model has taken the inputs by then."""
    plain.play([update(ONE, 2)])
    topics = topics_of(plain.workload)
    log = JudgesLog(plain.log, topics.all)
    state = begin(plain.workload, log, None, {})
    records: list[Record] = []
    log.read(log.stable_ends(), records.append)
    for record in sorted(records, key=lambda record: record.topic not in plain.workload.reads):
        if record.topic in plain.workload.reads:
            state.oracle.feed(record)
        elif record.topic != topics.changelog:
            state.take_written(record, topics)
    assert [*state.matching.findings, *state.matching.left()] == []
    assert (state.matching.compared, state.matching.passed_over) == (7, 2), "stats and tendency of the first update"


@pytest.mark.parametrize(("side", "bound"), [("inputs", 300), ("outputs", 90)])
def test_no_more_is_read_of_one_side_than_may_wait_for_the_other(
    stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch, side: str, bound: int
) -> None:
    """A client hands over whole batches of what it has; what is far ahead is held."""
    monkeypatch.setattr(state_module, "_STEP", 5)
    monkeypatch.setattr(state_module, "_WAITING_MAX", 10)
    stage.play([update(user, 2) for user in range(4000, 4200)])
    topics = topics_of(stage.workload)
    first = stage.workload.reads if side == "inputs" else stage.workload.outputs
    most = 0

    class Uneven(JudgesLog):
        """All of one side that is not held comes first."""

        def read(self, ends: Any, take: Any, alive: Any = lambda: None) -> None:
            ahead = {
                place: end for place, end in self.stable_ends().items() if place[0] in first and place not in self._held
            }
            super().read(
                {**ends, **{place: min(end, self.positions[place] + 10) for place, end in ahead.items()}}, take, alive
            )

    log = Uneven(stage.log, topics.all)
    state = begin(stage.workload, log, None, {})

    def take(record: Record) -> None:
        nonlocal most
        if record.topic in stage.workload.reads:
            state.oracle.feed(record)
        elif record.topic != topics.changelog:
            state.take_written(record, topics)
        most = max(most, state.matching.ahead if side == "inputs" else state.matching.behind)

    ends = log.stable_ends()
    state_module.read_evenly(log, stage.workload, state.matching, ends, take)
    assert log.positions == ends
    assert [*state.matching.findings, *state.matching.left()] == []
    assert (state.matching.ahead, state.matching.behind) == (0, 0)
    assert most < 2 * bound / 3, "and without a limit more than the bound"
    assert not log._held


@pytest.mark.parametrize("kafka_key", ["run_id", lambda fields: fields["run_id"]])
def test_an_output_record_is_under_the_key_that_its_table_names(
    module_database: str, monkeypatch: pytest.MonkeyPatch, kafka_key: Any
) -> None:
    """As its handler names it."""
    stats = replace(STATS, kafka_key=kafka_key)
    monkeypatch.setattr(runner, "WORKLOAD", replace(runner.WORKLOAD, tables=(stats, TENDENCY, MESSAGES)))
    stage = SimulatedStage(module_database, runner.WORKLOAD)

    def named(right: Any, table: Any, key: Any) -> str:
        if table is not stats:
            return str(right(table, key))
        return str(right(table, key, kafka_key=b"%d" % key[0], partition=place_of(str(key[0]))))

    one = update(ONE, 1)._replace(value=(update(ONE, 1).value or b"").replace(b'"run_id": %d' % ONE, b'"run_id": 7'))
    planted(stage, [one], named)
    assert found(stage) == []
    stage.play([update(ONE, 2)._replace(value=(one.value or b"").replace(b'"sequence_id": 1', b'"sequence_id": 2'))])
    assert [(wrong.where, wrong.columns) for wrong in found(stage)] == [
        ("runner.stats", {"Kafka key": ("7", str(ONE))})
    ]


def test_numbers_that_a_merge_may_add_up_leave_the_verdict_open(
    stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless something else is wrong. The model has to say what the merge does."""
    monkeypatch.setattr(matching, "may_add", lambda work: ["runner.stats"])

    def bug(right: Any, table: Any, key: Any) -> str:
        values = stage.expected.model.rows[table.name][key][0]
        return str(right(table, key, values=(*values[:2], 1, 100, 1000) if table is STATS else values))

    planted(stage, [update(ONE, 2)], bug)
    stage.play([update(ONE, 3)])
    said = stage.judge()
    assert (said.outcome, said.code) == (UNKNOWN, str(Code.MODEL_WRONG))
    assert "the merge of runner.stats may add them up" in said.reason
    with closing(Auditor("runner", client={}, dsn=stage.dsn, kafka=stage.kafka)) as auditor:
        turns = iter([False] * 20)
        audited = auditor.run(lambda standing: None, lambda pause: next(turns, True), lambda one: one.outcome == VALID)
    assert (audited.outcome, audited.reason) == (UNKNOWN, said.reason)
    planted(stage, [update(ONE, 4)], lambda right, *args: right(*args, kafka_key=b"x"))
    assert stage.judge().outcome == INVALID
