"""The Kafka clients of a sink, without a server."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onefold import kafka_client, kafka_offsets
from onefold.error_codes import Code
from onefold.kafka_probe import Trouble
from onefold.processor.core.errors import Retriable, Unauthenticated
from onefold.spark_sink.kafka.topics import Topics


class Message:
    def __init__(self, place: TopicPartition) -> None:
        self._place = place

    def topic(self) -> str:
        return self._place.topic

    def partition(self) -> int:
        return self._place.partition

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

    def consume(self, count: int, timeout: float) -> list[Message]:
        self.polled.set()
        self._again.wait(0.2)
        return [Message(self._assigned[-1])]

    def resume(self, places: list[TopicPartition]) -> None:
        pass

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


def test_a_silent_kafka_is_not_taken_for_one_without_the_record() -> None:
    """The sink would refuse a topic whose last written record is gone."""
    with (
        closing(Topics("127.0.0.1:9", {}, patience_s=0.2)) as topics,
        pytest.raises(Retriable, match=r"does not give notes/0@7 in 0\.2 s"),
    ):
        topics.record_from("notes", 0, 7)


@pytest.mark.parametrize(("refused", "made"), [(True, 2), (False, 1)])
def test_only_a_login_that_kafka_has_refused_is_made_again(
    monkeypatch: pytest.MonkeyPatch, refused: bool, made: int
) -> None:
    """A client reads its certificates once, and other queries use the clients."""
    consumers: list[dict[str, str]] = []
    monkeypatch.setattr(kafka_client, "admin", lambda settings: object())

    def consumer(settings: dict[str, str]) -> SimpleNamespace:
        consumers.append(settings)
        return SimpleNamespace(close=list)

    monkeypatch.setattr(kafka_client, "consumer", consumer)
    trouble = Trouble(Code.KAFKA_LOGIN, "wrong password", "", refused=refused)
    monkeypatch.setattr(kafka_client, "explain", lambda cause, client: trouble)
    topics = Topics("kafka:9092", {"sasl.password": "first"})

    def silent(*given: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(kafka_offsets, "partitions", silent)
    with pytest.raises(Unauthenticated if refused else Retriable):
        topics.ends(["shop.totals"])
    topics.renew({"sasl.password": "second"})
    assert len(consumers) == made
    assert consumers[-1]["sasl.password"] == ("second" if refused else "first")
