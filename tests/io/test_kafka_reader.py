"""The order in which partitions are read and end, over a consumer that gives what a broker would."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onefold.operate import reading


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
    found = reading.messages(consumer, starts, ends, reading.within(0.2), **more)
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
