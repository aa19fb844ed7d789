"""The order in which partitions are read and end, over a consumer that gives what a broker would."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onefold import kafka_reader
from onefold.processor.core.errors import Retriable
from onefold.processor.io import reading


class Given:
    """A record, or what librdkafka reports instead of one."""

    def __init__(self, topic: str, partition: int, offset: int, error: int | None = None) -> None:
        self._place = topic, partition, offset
        self._error = error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


class Scripted:
    """A consumer that gives these, one after the other, and notes which partitions are paused."""

    def __init__(self, *given: Given) -> None:
        self._given = [*given]
        self.paused: set[int] = set()

    def given(self, *more: Given) -> None:
        self._given += more

    def assign(self, places: list[Any]) -> None:
        pass

    def resume(self, places: list[Any]) -> None:
        self.paused -= {place.partition for place in places}

    def pause(self, places: list[Any]) -> None:
        self.paused |= {place.partition for place in places}

    def consume(self, count: int, timeout: float) -> list[Given]:
        found, self._given = self._given[:count], self._given[count:]
        return found


def end(partition: int, offset: int) -> Given:
    return Given("t", partition, offset, KafkaError._PARTITION_EOF)


def read(consumer: Any, ends: dict[tuple[str, int], int], **more: Any) -> list[tuple[int, int]]:
    starts = dict.fromkeys(ends, 0)
    found = kafka_reader.messages(consumer, starts, ends, kafka_reader.within(0.2), **more)
    return [(place[1], message.offset() or 0) for place, message in found]


def test_each_partition_is_read_to_its_end_or_to_what_is_there() -> None:
    """Without what another one sent ahead, and what lies behind the end."""
    consumer = Scripted(
        Given("t", 0, 0), Given("other", 0, 1), Given("t", 1, 0), Given("t", 0, 1), Given("t", 0, 2), end(1, 5)
    )
    consumer.paused = {0, 1}
    ends = {("t", 0): 2, ("t", 1): 9}
    assert read(consumer, ends) == [(0, 0), (1, 0), (0, 1)]
    assert ends == {}
    assert consumer.paused == {0}, "the last one needs no pause"


def test_a_partition_ends_with_its_last_record_or_one_behind_it() -> None:
    assert read(Scripted(Given("t", 0, 1)), {("t", 0): 2}) == [(0, 1)]
    assert read(Scripted(Given("t", 0, 1), Given("t", 0, 7)), {("t", 0): 5}) == [(0, 1)]


def test_time_ends_the_reading() -> None:
    ends = {("t", 0): 2, ("t", 1): 2}
    with pytest.raises(TimeoutError):
        read(Scripted(Given("t", 0, 0), end(1, 0)), ends)
    assert ends == {("t", 0): 2}


def test_an_error_is_raised_unless_it_is_taken() -> None:
    def given() -> Scripted:
        return Scripted(Given("t", 0, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED), Given("t", 1, 0), end(1, 1))

    with pytest.raises(KafkaException):
        read(given(), {("t", 0): 2, ("t", 1): 2})
    failed = []
    found = read(given(), {("t", 0): 2, ("t", 1): 2}, failed=lambda place, error: failed.append(place))
    assert (found, failed) == ([(1, 0)], [("t", 0)])


def test_an_open_transaction_is_not_the_end_of_a_held_partition() -> None:
    """And the markers behind a transaction count as read."""
    given = Scripted(Given("t", 0, 0), end(0, 1), Given("t", 0, 5), end(0, 7))
    positions, ends = {("t", 0): 0}, {("t", 0): 7}
    found = kafka_reader.messages(given, positions, ends, kafka_reader.within(0.2), held=True)  # type: ignore[arg-type]  # a scripted consumer
    assert [message.offset() for _, message in found] == [0, 5]
    assert (positions, ends) == ({("t", 0): 7}, {})


def test_records_of_an_earlier_assignment_are_left_out() -> None:
    """Of the same partition, and of another one."""
    assert read(Scripted(Given("t", 1, 3), Given("t", 0, 0)), {("t", 0): 1}) == [(0, 0)]
    found = kafka_reader.messages(
        Scripted(Given("t", 0, 2), Given("t", 0, 5)),  # type: ignore[arg-type]  # a scripted consumer
        {("t", 0): 5}, {("t", 0): 6}, kafka_reader.within(0.2),
    )  # fmt: skip
    assert [message.offset() for _, message in found] == [5]


class Log(Scripted):
    """A consumer of a partition that begins at an offset, and has those records."""

    def __init__(self, begin: int, *offsets: int) -> None:
        super().__init__()
        self._begin, self._offsets = begin, offsets
        self.assigned: list[int] = []

    def assign(self, places: list[Any]) -> None:
        (place,) = places
        self.assigned.append(place.offset)
        deleted = [Given("t", 0, place.offset, KafkaError._AUTO_OFFSET_RESET)]
        there = [Given("t", 0, offset) for offset in self._offsets if offset >= place.offset]
        self._given = deleted if place.offset < self._begin else [*there, end(0, self._offsets[-1] + 1)]

    def close(self) -> None:
        pass


def test_records_near_each_other_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that retention has removed costs no other one, and a place without a record is left out."""
    log = Log(4, 5, 6, 9, 5_000)
    monkeypatch.setattr(reading, "consumer", lambda client: log)
    found = reading.fetch({}, [("t", 0, offset) for offset in (3, 6, 8, 9, 5_000)])
    assert sorted(found) == [("t", 0, 6), ("t", 0, 9), ("t", 0, 5_000)]
    assert log.assigned == [3, 6, 5_000]


def test_a_range_that_stays_where_it_is_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Scripted(Given("t", 0, 0), end(0, 1))
    found = reading.read(given, {("t", 0): (0, 7)}, stall_s=0.05)  # type: ignore[arg-type]  # a scripted consumer
    assert next(found).offset() == 0
    with pytest.raises(Retriable, match="t/0 stays at offset 1 of 7"):
        next(found)


def test_a_partition_that_an_earlier_reading_paused_is_read_again() -> None:
    consumer = Scripted(Given("t", 0, 0), Given("t", 0, 1), end(1, 0))
    assert read(consumer, {("t", 0): 2, ("t", 1): 9}) == [(0, 0), (0, 1)]
    assert consumer.paused == {0}
    consumer.given(Given("t", 0, 2))
    found = kafka_reader.messages(consumer, {("t", 0): 2}, {("t", 0): 3}, kafka_reader.within(0.2))  # type: ignore[arg-type]  # a scripted consumer
    assert [message.offset() for _, message in found] == [2]
    assert consumer.paused == set()
