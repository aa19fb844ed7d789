"""The Kafka clients of a sink, without a server."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TopicPartition

from onefold import kafka_client
from onefold.spark_sink.kafka.topics import Topics


class Message:
    def __init__(self, place: TopicPartition) -> None:
        self._place = place

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self._place.offset

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b"%d" % self._place.partition

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000


class Consumer:
    """Gives the record of the partition that was assigned last. The first poll gives another thread time to assign."""

    def __init__(self) -> None:
        self._assigned: list[TopicPartition] = []
        self.polled, self._again = threading.Event(), threading.Event()

    def assign(self, places: list[TopicPartition]) -> None:
        if self._assigned:
            self._again.set()
        self._assigned += places

    def poll(self, timeout: float) -> Message:
        self.polled.set()
        self._again.wait(0.2)
        return Message(self._assigned[-1])

    def unassign(self) -> None:
        pass


def test_two_threads_read_their_own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer has one assignment, and all queries of a sink share it."""
    consumer = Consumer()
    monkeypatch.setattr(kafka_client, "consumer", lambda settings: consumer)
    topics = Topics("127.0.0.1:9", {})
    with ThreadPoolExecutor() as pool:
        first = pool.submit(topics.record_from, "notes", 0, 7)
        assert consumer.polled.wait(5)
        second = pool.submit(topics.record_from, "notes", 1, 7)
        found = [record.value for one in (first, second) if (record := one.result()) is not None]
    assert found == [b"0", b"1"]
