"""The topics of a pipeline alone, written as the verifier's own model says: what is right is never called wrong.

A record is then written that is wrong, and exactly that record is named.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest

from onefold.verify import matching, tables
from onefold.verify.audit.following import Following
from onefold.verify.audit.pace import PACE
from onefold.verify.contracts import contracts
from onefold.verify.expect import Column, Oracle
from onefold.verify.placement import partition_of
from onefold.verify.record import Record, Source
from onefold.verify.verdict import Finding
from onefold.workloads import averages, runner
from onefold.workloads.runner import STATS, TENDENCY
from onefold.workloads.shaping import Input
from tests.support.simulated_stage import InMemoryStage, JudgesLog, LastPartitionFirst, OutputsFirst, kafka_of
from tests.support.stage import PARTITIONS

HOME = {place: [user for user in range(3000, 3040) if partition_of(str(user), PARTITIONS) == place] for place in (0, 1)}
ONE, OTHER, *_ = HOME[1]
#: A name of partition 1.
NAME = next(f"n{number}" for number in range(9) if partition_of(f"n{number}", PARTITIONS) == 1)
#: A pipeline whose rows have one key each: of several changes in one transaction the processor writes the last.
FEW = replace(runner.WORKLOAD, tables=(STATS, TENDENCY))
READ = pytest.mark.parametrize("opened", [JudgesLog, OutputsFirst, LastPartitionFirst])


def update(user: int, sequence: int, metres: int = 100) -> Input:
    text = b'{"user_id": %d, "distance_meters": %d, "timestamp_utc": %d, "sequence_id": %d, "run_id": %d}'
    return Input(runner.TOPIC, b"%d" % user, text % (user, metres, 1000 * sequence, sequence, user))


@contextmanager
def planted(stage: InMemoryStage, bug: Callable[..., str]) -> Iterator[None]:
    """Write each output record with a bug, which is called as `stage.write` is, and with the right one first."""
    right = stage.write
    vars(stage)["write"] = lambda *args, **more: bug(right, *args, **more)
    yield
    del vars(stage)["write"]


def followed(stage: InMemoryStage, opened: type[JudgesLog] = JudgesLog, steps: int = 10_000) -> Following:
    """What follows the pipeline, after it began; `steps`: how many offsets of a partition one step reads."""
    kafka, pace = kafka_of(stage.log, opened), replace(PACE, step_offsets=steps)
    following = Following(stage.workload, {}, None, None, kafka=kafka, pace=pace)
    following.begin()
    return following


def named(found: list[Finding]) -> list[tuple[str, str, str | None]]:
    return [(one.kind, one.where, one.output) for one in found]


def test_a_verifier_that_is_behind_in_the_middle_of_a_transaction_calls_nothing_missing() -> None:
    stage = InMemoryStage(FEW)
    stage.play([update(ONE, 1), update(OTHER, 1)])
    following = followed(stage, steps=10)
    stage.play([update(ONE, sequence) for sequence in range(2, 60)])
    while not following.step() or following.waiting:
        assert following.findings == []
    assert following.findings == []
    with planted(stage, lambda right, table, key: "" if table is TENDENCY else right(table, key)):
        stage.place["runner.tendency", (ONE,)] = 0, 0
        stage.play([update(ONE, sequence) for sequence in range(60, 90)])
    for _ in range(20):
        following.step()
    last = f"{runner.TOPIC}/1/{len(stage.originals) - 1}"
    assert [(one.kind, one.where, one.source) for one in following.findings] == [
        ("missing output", "runner.tendency", last)
    ]


def aborted(stage: InMemoryStage, user: int) -> Source:
    """An input record of an aborted transaction."""
    transaction = stage.log.init("aborted")
    stage.log.write("aborted", transaction, runner.TOPIC, 1, b"%d" % user, update(user, 2).value, ())
    stage.log.end("aborted", transaction, commit=False)
    offset = stage.ends[runner.TOPIC, 1]
    stage.ends[runner.TOPIC, 1] = stage.log.identity(runner.TOPIC, 1).end
    return Source(runner.TOPIC, 1, offset)


def dead(stage: InMemoryStage, user: int) -> Source:
    """An input record that is a dead letter."""
    stage.play([update(user, 2, metres=-1)])
    return list(stage.originals)[-1]


@READ
@pytest.mark.parametrize("cause", [aborted, dead])
def test_an_output_record_of_no_accepted_input_that_is_there_at_the_start_is_named(
    opened: type[JudgesLog], cause: Callable[[InMemoryStage, int], Source]
) -> None:
    stage = InMemoryStage(runner.WORKLOAD)
    stage.play([update(ONE, 1), update(OTHER, 1)])
    place = stage.write(TENDENCY, (ONE,), cause(stage, ONE))
    stage.play([update(ONE, 3)])
    following = followed(stage, opened)
    assert named(following.findings) == [("phantom output", "runner.tendency", place)]
    for _ in range(3):
        following.step()
    assert len(following.findings) == 1
    assert named(stage.verified(opened)[0]) == [("phantom output", "runner.tendency", place)]


@READ
@pytest.mark.parametrize("home", [0, 1])
def test_an_output_record_in_another_partition_is_named_in_whatever_order_partitions_are_read(
    opened: type[JudgesLog], home: int
) -> None:
    stage, places = InMemoryStage(runner.WORKLOAD), list[str]()
    one, other, *_ = HOME[home]
    stage.play([update(one, 1), update(other, 1)])

    def bug(right: Any, *args: Any) -> str:
        places.append(right(*args, partition=1 - home))
        return places[-1]

    with planted(stage, bug):
        stage.play([update(one, 2)])
    doubled = stage.write(TENDENCY, (one,), partition=1 - home)
    stage.play([update(one, 3)])
    found, _ = stage.verified(opened)
    assert {one.output for one in found} >= {*places}
    assert doubled in {one.output for one in found}
    assert {*places, doubled} >= {one.output for one in found}


@READ
def test_an_output_record_of_a_dead_letter_in_another_partition_is_named(opened: type[JudgesLog]) -> None:
    stage, (one, *_) = InMemoryStage(runner.WORKLOAD), HOME[0]
    stage.play([update(one, 1)])
    cause = dead(stage, one)
    stage.play([update(one, 3)])
    place = stage.write(TENDENCY, (one,), cause, partition=1)
    assert ("phantom output", "runner.tendency", place) in named(stage.verified(opened)[0])


class Averages(InMemoryStage):
    """Numbers of two streams, each in the order in which it was sent. `partitions`: how many the outputs have.

    Attributes:
        adds: whether an alarm says by how much their number grows.
    """

    def __init__(self, *, adds: bool) -> None:
        alarms = averages.ALARMS if adds else replace(averages.ALARMS, adds=())
        super().__init__(replace(averages.WORKLOAD, tables=(averages.AVERAGES, alarms)))
        self.partitions = PARTITIONS
        self._adds, self._grown = adds, 0

    @property
    def topics(self) -> list[str]:
        return [*super().topics, "averages.order"]

    def write(self, table: Any, key: Any, *_: Any, **more: Any) -> str:
        values, source = self.expected.model.rows[table.name][key]
        more = {"partition": partition_of(self.keys[source], self.partitions), **more}
        if table.name == "averages.alarms" and self._adds:
            more = {"values": (values[0], values[1] - self._grown), **more}
            self._grown = values[1]
        return super().write(table, key, **more)

    def alarm(self, at: int, told_by: str) -> None:
        """Send what makes an alarm: too many numbers, and one of the other stream, after which they are known."""
        (many,) = {*averages.STREAMS} - {told_by}
        for topic in (*[many] * 103, told_by):
            self.number(topic, 10_000 * at)

    def number(self, topic: str, at: int) -> None:
        """Send a number."""
        value = json.dumps({"name": NAME, "value": 1.5, "at_ms": 1_767_225_600_000 + at}).encode()
        offset = self.ends[topic, 1]
        self.play([Input(topic, NAME.encode(), value)])
        runs = json.dumps({"version": 1, "runs": [[topic, offset, offset + 1]]}).encode()
        self.log.append("averages.order", None, runs, partition=1, headers=[], timestamp_ms=1)


@READ
@pytest.mark.parametrize("adds", [True, False])
def test_a_partition_may_be_added_where_rows_follow_from_two_inputs(opened: type[JudgesLog], adds: bool) -> None:
    stage = Averages(adds=adds)
    for at in range(8):
        stage.partitions = 1 if at < 4 else PARTITIONS
        stage.alarm(at, averages.STREAMS[at % 2])
    found, compared = stage.verified(opened)
    assert found == []
    assert compared.passed_over < compared.compared


@READ
@pytest.mark.parametrize("wrong", [0, 2])
def test_growth_that_is_wrong_is_named(opened: type[JudgesLog], wrong: int) -> None:
    """With the first output record of a row and with later ones."""
    stage, places = Averages(adds=True), list[str]()

    def bug(right: Any, table: Any, key: Any) -> str:
        if table.name != "averages.alarms":
            return str(right(table, key))
        places.append(right(table, key, values=(*key, 7)))
        return ""

    for at in range(5):
        with planted(stage, bug if at == wrong + 1 else lambda right, *args: right(*args)):
            stage.alarm(at, averages.STREAMS[1])
    (found,) = stage.verified(opened)[0]
    assert (found.kind, found.columns, found.output) == ("wrong output", {"alarms": (1, 7)}, *places)


@pytest.mark.parametrize("sent_ms", [-5, 1_700_000_000_000_000])
def test_a_copy_has_the_time_of_its_original_whatever_time_that_is(sent_ms: int) -> None:
    """Before 1970, or in microseconds, as some clients give it."""
    stage = InMemoryStage(runner.WORKLOAD)
    elsewhere = next(name for name in ("a", "b", "c") if partition_of(name, PARTITIONS) == 0).encode()
    original = Record(runner.TOPIC, 0, 0, elsewhere, update(ONE, 1).value, [*stage.traced], sent_ms)
    source = Source(*original[:3])
    stage.originals[source] = original
    for told, changed in ((b"%d" % sent_ms, False), (b"%d" % (sent_ms + 1), True)):
        copy = stage.copy(source, 1, b"%d" % ONE, sent=told)
        judged = Oracle(stage.workload, PARTITIONS, owner=stage.oracle.owner)
        judged.feed(original)
        judged.feed(copy)
        assert [list(one.columns) for one in judged.expected.changed] == ([["onefold-timestamp"]] if changed else [])


def test_an_output_record_whose_key_is_out_of_range_is_unreadable() -> None:
    stage = Averages(adds=True)
    stage.alarm(0, averages.STREAMS[1])
    stage.alarm(1, averages.STREAMS[1])
    entry = stage.log.read("averages.averages", 1, 0)[0][0][1]
    contract, body = contracts()["averages.averages"], BytesIO()
    fields = {"name": NAME, "window_end": 2**62, "average": b"\0"}
    fastavro.schemaless_writer(body, contract.schema, {**dict.fromkeys(contract.fields, 0), **fields})
    headers: Any = list(entry.headers)
    stage._send("averages.averages", 1, entry.key, contract.prefix + body.getvalue(), headers)
    (found,) = stage.verified()[0]
    assert (found.kind, found.output) == ("unreadable output", "averages.averages/1/1")


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (1, 3, 2),
        (None, 3, 3),
        (3, None, tables.UNTOLD),
        (0.1, 0.1 + 0.2, tables.UNTOLD),  # what is added up in another order has other last digits
        (Decimal("1E+30"), Decimal("1000000000000000000000000000000.000000001"), Decimal("1E-9")),
    ],
)
def test_the_growth_of_a_number_is_exact_and_null_is_nothing(before: Any, now: Any, grown: Any) -> None:
    assert matching.growth(now, before) == grown


def test_a_misplaced_output_record_is_named_once_by_one_that_follows() -> None:
    stage, (one, *_) = InMemoryStage(runner.WORKLOAD), HOME[0]
    stage.play([update(one, 1)])
    following = followed(stage)
    with planted(stage, lambda right, *args: right(*args, partition=1)):
        stage.play([update(one, 2)])
    for _ in range(6):
        following.step()
    places = [found.output for found in following.findings]
    assert len(places) == len({*places}) == 3


class InDoubles(runner.Model):
    """The model of runner with a number whose growth is not exact."""

    def apply(self, value: dict[str, Any], source: Source) -> Any:
        changed = super().apply(value, source)
        if changed:
            key = value["run_id"], value["user_id"]
            values, since = self._stats[key]
            self._stats[key] = (*values[:3], float(values[3]), values[4]), since
        return changed


def test_a_number_whose_growth_is_not_exact_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own column may hold anything, if the merge may add up; the others of the record are compared."""
    monkeypatch.setattr(matching, "may_add", lambda work: ["runner.stats"])
    double = replace(STATS, but=(Column(STATS.columns[3].name, "double"),))
    stage = InMemoryStage(replace(runner.WORKLOAD, model=InDoubles, tables=(double, *runner.WORKLOAD.tables[1:])))
    written = list[str]()

    def bug(right: Callable[..., str], table: Any, key: Any) -> str:
        values = stage.expected.model.rows[table.name][key][0]
        if table.name != "runner.stats":
            return right(table, key)
        whole = (*values[:3], int(values[3]), values[4])
        wrong = {4: (*values[:3], 999_999, values[4]), 6: (*values[:2], 77, 999_999, values[4])}
        written.append(right(table, key, values=wrong.get(len(written) + 1, whole)))
        return written[-1]

    for sequence in range(1, 9):
        with planted(stage, bug):
            stage.play([update(ONE, sequence)])
    found, outputs = stage.verified(JudgesLog)
    assert [(one.kind, one.output) for one in found] == [("wrong output", written[5])]
    assert "runner.stats" in outputs.undeclared()
