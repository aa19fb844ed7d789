"""The averages' rule, as a table: (state, event) -> (state, outputs); and judged, whatever crashes, by a model of its own."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.processor.apps.averages import AT_MS_END, LEFT, NUMBERS_MAX, RIGHT, TOPOLOGY, Channel, handle
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Event
from onefold.processor.io import contracts
from onefold.processor.io.serde import AvroCodec
from onefold.processor.testing import TopologyDriver
from onefold.verify.decode import Inadmissible
from onefold.verify.expect import Oracle
from onefold.verify.order import Order
from onefold.verify.outputs import Outputs
from onefold.verify.record import Record, Source
from onefold.workloads import averages
from onefold.workloads.shaping import Shape


def number(topic: str, at_s: float, value: str = "1", name: str = "n") -> Event:
    return Event(topic, 0, 0, SimpleNamespace(name=name, value=Decimal(value), at_ms=round(at_s * 1000)))


def fold(*events: Event) -> tuple[Channel | None, list[Any]]:
    state: Channel | None = None
    produced: list[Any] = []
    for event in events:
        state, outputs = handle(state, event)
        produced += outputs
    return state, produced


def told(produced: list[Any]) -> list[tuple[float, str, int, int]]:
    """Second of the end, average, numbers, late."""
    rows = [fields for topic, fields in produced if topic == "averages.averages"]
    return [(row["window_end"].timestamp(), str(row["average"]), row["numbers"], row["late"]) for row in rows]


def test_a_number_is_in_six_minutes_and_each_is_told_when_both_streams_are_beyond_it() -> None:
    before = [number(LEFT, 5, "1"), number(RIGHT, 15, "2"), number(LEFT, 500, "4")]
    assert told(fold(*before)[1]) == [(10, "1.000000", 1, 0)], "the right stream has not got farther"
    assert told(fold(*before, number(RIGHT, 30))[1]) == [
        (10, "1.000000", 1, 0),
        (20, "1.500000", 2, 0),
        (30, "1.500000", 2, 0),
    ]


def test_the_faster_stream_makes_no_number_of_the_slower_one_late() -> None:
    """However far it is ahead: an hour of it may be read first."""
    produced = fold(
        *(number(LEFT, at) for at in range(0, 3600, 60)), *(number(RIGHT, at) for at in range(0, 3600, 60))
    )[1]
    assert {late for *_, late in told(produced)} == {0}
    assert {numbers for end, _, numbers, _ in told(produced) if end > 60} == {2}


def test_a_number_that_is_late_is_counted_and_changes_nothing_that_was_told() -> None:
    """It missed three of its minutes, and counts in the three that are open."""
    events = [number(LEFT, 65), number(RIGHT, 95), number(LEFT, 100), number(RIGHT, 61, "7"), number(RIGHT, 130)]
    _, produced = fold(*events)
    assert told(produced) == [
        (70, "1.000000", 1, 0),
        (80, "1.000000", 1, 0),
        (90, "1.000000", 1, 0),
        (100, "3.000000", 3, 3),
    ]


def test_an_average_is_rounded_once_and_exactly() -> None:
    """Halves to even; a float would say 0.1 + 0.2, and a running mean would be rounded each time."""
    values = ["0.000001", "0.000002", "999999999999.999999", "-999999999999.999999"]
    both = number(LEFT, 10), number(RIGHT, 10)
    ((_, average, numbers, _),) = told(fold(*(number(LEFT, 1, value) for value in values), *both)[1])
    assert (average, numbers) == ("0.000001", 4)
    ((_, average, _, _),) = told(fold(*(number(LEFT, 1, value) for value in values[:2]), *both)[1])
    assert average == "0.000002"


@pytest.mark.parametrize(("numbers", "alarms"), [(NUMBERS_MAX, []), (NUMBERS_MAX + 1, [2])])
def test_a_minute_with_too_many_numbers_raises_an_alarm(numbers: int, alarms: list[int]) -> None:
    """One record for all that one event has ended: it is added to the counter."""
    _, produced = fold(*(number(LEFT, 5) for _ in range(numbers)), number(RIGHT, 20), number(LEFT, 20))
    found = [fields for topic, fields in produced if topic == "averages.alarms"]
    assert [alarm["alarms"] for alarm in found] == alarms
    assert all(alarm["window_end"] == datetime(1970, 1, 1, 0, 0, 20, tzinfo=UTC) for alarm in found)


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (number(LEFT, 0, name=""), "name has 0 characters"),
        (number(LEFT, 0, name="n" * 101), "name has 101 characters"),
        (number(LEFT, -0.001), "at_ms is -1"),
        (number(LEFT, AT_MS_END / 1000), "at_ms is 32503680000000"),
        *(
            (number(LEFT, 0, value), "value must be")
            for value in ("1e12", "0.0000001", "1e-999999", "NaN", "sNaN", "Infinity")
        ),
    ],
)
def test_what_cannot_be_taken_is_refused(event: Event, says: str) -> None:
    with pytest.raises(Rejected, match=says):
        handle(None, event)
    value = event.value
    with pytest.raises(Inadmissible):
        averages.Model().apply(vars(value), Source(event.topic, 0, 0))


def test_a_state_is_the_same_after_it_was_stored() -> None:
    state, _ = fold(number(LEFT, 5, "0.10"), number(RIGHT, 95, "-7"), number(LEFT, 70))
    codec = AvroCodec(TOPOLOGY, contracts.load())
    assert codec.decode_state(TOPOLOGY, codec.encode_state(state)) == state


@pytest.mark.parametrize("seed", range(3))
def test_the_judge_agrees_on_every_minute_and_every_alarm_whatever_crashes(seed: int) -> None:
    """2,000 numbers, hostile ones among them, in the wrong partitions too; a crash in each wave."""
    driver = TopologyDriver(TOPOLOGY, partitions=2)
    shape = Shape(hostile=0.02, keyless=0.02, late=0.05)
    for at, given in enumerate(averages.generate(seed, 2000, shape=shape)):
        partition = driver.task()._inputs.partition_of(given.key.decode()) if given.key else at % 2
        driver.log.append(given.topic, given.key, given.value, partition=partition)
        if at % 250 == 249:
            driver.crash_at("before_commit", 1 + at % 3)
            driver.run()
    oracle, said = Oracle(averages.WORKLOAD, 2), Outputs(averages.WORKLOAD)
    order = Order(averages.STREAMS, oracle.feed)
    for topic, take in (
        *((topic, order.feed) for topic in averages.STREAMS),
        ("averages.order", order.add),
        *((topic, said.feed) for topic in (*averages.WORKLOAD.outputs, *TOPOLOGY.dead.values())),
    ):
        for partition in range(2):
            for offset, entry in driver.log.read(topic, partition, 0)[0]:
                take(Record(topic, partition, offset, entry.key, entry.value, list(entry.headers)))
    assert order.left_over() == ""
    expected = oracle.settled()
    assert list(said.judge(expected)) == []
    rows = {key: row for key, (row, _) in expected.model.rows["averages.averages"].items()}
    assert rows == {(row["name"], row["window_end"]): tuple(row.values()) for row in driver.read("averages.averages")}
    counted: dict[str, int] = {}
    for alarm in driver.read("averages.alarms"):
        counted[alarm["name"]] = counted.get(alarm["name"], 0) + alarm["alarms"]
    assert {key[0]: row[1] for key, (row, _) in expected.model.rows["averages.alarms"].items()} == counted
    assert counted
    assert max(row[4] for row in rows.values()) > 0, "some were late"
    assert len(expected.dead) > 10
    assert json.loads(driver.records("averages.order")[0][1] or b"")["version"] == 1
