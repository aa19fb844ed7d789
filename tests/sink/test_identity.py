"""Every single reason why the sink refuses a topic, and what looks like one and is none. Without Kafka and Postgres."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.spark_sink.landing import ledger, topic_identity
from onefold.spark_sink.landing.ledger import LastRecord, LedgerPosition, Partition
from onefold.spark_sink.landing.protocols import KafkaRecord, Reach
from onefold.spark_sink.postgres.connection import Connection
from tests.support.coded import raises

NAME, TOPIC = "made_up", "made_up.notes"
KEY = (TOPIC, 0)
RECORD = LastRecord(5, 777)


@dataclass
class Kafka:
    """Topics as Kafka would tell of them: offsets 2 to 10, and the record that was landed last."""

    topic_ids: dict[str, str] = field(default_factory=lambda: {TOPIC: "id-1"})
    reaches: dict[Partition, Reach] = field(default_factory=lambda: {KEY: Reach(2, 10)})
    found: int | None = RECORD.fingerprint
    compacted: bool = False
    looked_at: list[int] = field(default_factory=list)

    def ids(self, topics: list[str]) -> dict[str, str]:
        return {topic: self.topic_ids[topic] for topic in topics}

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        return self.reaches

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        raise AssertionError("which topic it is does not depend on a whole record")

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        self.looked_at.append(last.offset)
        return self.found

    def is_compacted(self, topic: str) -> bool:
        return self.compacted


Recognise = Callable[[Kafka], tuple[dict[Partition, int], dict[str, str]]]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[Partition, LedgerPosition]:
    """What Postgres holds."""
    held = {KEY: LedgerPosition(6, "id-1", RECORD)}

    def open_partition(connection: Any, sink: str, key: Partition, start: int, topic_id: str, writer: str) -> None:
        assert (connection, sink, writer) == ("connection", NAME, "me")
        held.setdefault(key, LedgerPosition(start, topic_id, None))

    monkeypatch.setattr(ledger, "positions", lambda connection, sink: dict(held))
    monkeypatch.setattr(ledger, "open_partition", open_partition)
    return held


@pytest.fixture
def recognise(stored: dict[Partition, LedgerPosition]) -> Recognise:
    connection = cast("Connection", "connection")
    return lambda kafka: topic_identity.recognise(connection, NAME, "me", kafka, [TOPIC])


def test_topics_that_are_what_they_were_are_read_from_postgres_positions(recognise: Recognise) -> None:
    kafka = Kafka()
    assert recognise(kafka) == ({KEY: 6}, {TOPIC: "id-1"})
    assert kafka.looked_at == [5]


def test_a_partition_that_is_new_begins_where_kafka_has_it(
    recognise: Recognise, stored: dict[Partition, LedgerPosition]
) -> None:
    start, _ = recognise(Kafka(reaches={KEY: Reach(2, 10), (TOPIC, 1): Reach(4, 9)}))
    assert start == {KEY: 6, (TOPIC, 1): 4}
    assert stored[TOPIC, 1] == LedgerPosition(4, "id-1", None)


@pytest.mark.parametrize(
    ("position", "kafka", "code"),
    [
        (
            LedgerPosition(6, "id-0", RECORD),
            Kafka(),
            Code.TOPIC_RECREATED,
        ),
        (LedgerPosition(6, "id-1", RECORD), Kafka(reaches={}), Code.PARTITIONS_CHANGED),
        (LedgerPosition(11, "id-1", RECORD), Kafka(), Code.RECORDS_LOST),
        (LedgerPosition(1, "id-1", None), Kafka(), Code.RECORDS_DELETED),
        (LedgerPosition(6, "id-1", RECORD), Kafka(found=778), Code.TOPIC_RECREATED),
        (LedgerPosition(6, "id-1", RECORD), Kafka(found=None), Code.TOPIC_RECREATED),
        (LedgerPosition(6, "id-1", RECORD), Kafka(found=778, compacted=True), Code.TOPIC_RECREATED),
        (LedgerPosition(6, "id-1", LastRecord(2, 777)), Kafka(found=778), Code.TOPIC_RECREATED),
    ],
    ids=[
        "another id",
        "no such partition",
        "the end is below",
        "the start is above",
        "another record",
        "no record",
        "another record, and compaction does not change one",
        "the first record that Kafka still has",
    ],
)
def test_what_is_not_what_was_landed_is_refused(
    recognise: Recognise, stored: dict[Partition, LedgerPosition], position: LedgerPosition, kafka: Kafka, code: Code
) -> None:
    stored[KEY] = position
    with raises(Refused, code):
        recognise(kafka)


@pytest.mark.parametrize(
    ("position", "kafka", "looked_at"),
    [
        (LedgerPosition(10, "id-1", RECORD), Kafka(), [5]),
        (LedgerPosition(2, "id-1", LastRecord(1, 777)), Kafka(found=None), []),
        (LedgerPosition(6, "id-1", None), Kafka(found=None), []),
        (LedgerPosition(6, "id-1", RECORD), Kafka(found=None, compacted=True), [5]),
    ],
    ids=["all is landed", "retention removed the last record", "there was no record", "compaction removed it"],
)
def test_what_only_looks_like_a_reason_is_none(
    recognise: Recognise,
    stored: dict[Partition, LedgerPosition],
    position: LedgerPosition,
    kafka: Kafka,
    looked_at: list[int],
) -> None:
    stored[KEY] = position
    assert recognise(kafka) == ({KEY: position.next_offset}, {TOPIC: "id-1"})
    assert kafka.looked_at == looked_at


def test_every_partition_is_looked_at(recognise: Recognise, stored: dict[Partition, LedgerPosition]) -> None:
    """The first one is well."""
    stored[TOPIC, 1] = LedgerPosition(11, "id-1", None)
    with raises(Refused, Code.RECORDS_LOST, "made_up.notes/1", "10"):
        recognise(Kafka(reaches={KEY: Reach(2, 10), (TOPIC, 1): Reach(2, 10)}))


def test_a_topic_that_is_landed_no_more_is_not_asked_about(
    recognise: Recognise, stored: dict[Partition, LedgerPosition]
) -> None:
    stored["made_up.gone", 0] = LedgerPosition(11, "id-9", RECORD)
    assert recognise(Kafka())[0] == {KEY: 6}


def test_a_topic_that_was_made_anew_while_a_batch_was_read_is_refused() -> None:
    kafka = Kafka(topic_ids={"a": "id-1", "b": "id-2"})
    topic_identity.same_topics(kafka, {"a": "id-1", "b": "id-2"})
    with raises(Refused, Code.TOPIC_RECREATED, "id-2", "id-0"):
        topic_identity.same_topics(kafka, {"a": "id-1", "b": "id-0"})


def test_rows_that_come_from_a_decision_log_are_refused_before_kafka_is_asked(
    recognise: Recognise, stored: dict[Partition, LedgerPosition]
) -> None:
    """Offsets of two topics do not compare, whatever else the ledger says."""
    stored["made_up.decisions", 1] = LedgerPosition(7, "id-log", None)
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS, "made_up.decisions", "onefold rebuild made_up") as refusal:
        recognise(Kafka(topic_ids={}))
    assert refusal.value.exit_code == 3
    assert stored.keys() == {KEY, ("made_up.decisions", 1)}


def test_an_older_sink_that_begins_with_the_decision_log_meanwhile_is_seen(
    recognise: Recognise, stored: dict[Partition, LedgerPosition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found no position of output topics, and opens those of its log."""
    stored.clear()
    kafka = Kafka()

    def reach(topics: list[str]) -> dict[Partition, Reach]:
        stored["made_up.decisions", 0] = LedgerPosition(0, "id-log", None)
        return kafka.reaches

    monkeypatch.setattr(kafka, "reach", reach)
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS):
        recognise(kafka)
