"""A decision log as the sink's driver reads it, on a real Kafka."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Counts
from onefold.processor.io.admin import create_topics
from onefold.processor.io.proposals import AvroProposals
from onefold.spark_sink.decisions import Seen, seen
from onefold.spark_sink.errors import Refused, Rewind, SinkError, Waiting
from onefold.spark_sink.kafka import log_reader
from onefold.spark_sink.kafka.log_reader import LogReader
from onefold.spark_sink.landing.ledger import OffsetRange
from onefold.spark_sink.landing.protocols import Record
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]

PROPOSALS = AvroProposals()
SENT_MS = 1_700_000_000_000


def step(version: int, size: int) -> bytes:
    body = Body(Counts(), [(b"key", b"x" * size)], b"written")
    return PROPOSALS.encode(
        Proposal(0, version, {"in": Range("id", version, version + 1)}, "a", body, Kind.STEP, "log")
    )


# Small and large ones, none, and garbage; the same in each of two partitions.
VALUES = [step(1, 1), step(2, 100_000), b"\1garbage", None, step(3, 20)]


@pytest.fixture
def topic(fresh_domain: MakeDomain, client: dict[str, str]) -> str:
    topology = fresh_domain("runner", 2)
    create_topics(topology, 2, client, decisions=2)
    send(client, topology.decisions, *VALUES)
    return topology.decisions


@pytest.fixture
def reader(client: dict[str, str], topic: str) -> Iterator[LogReader]:
    with closing(LogReader(client["bootstrap.servers"], {}, {(topic, 0): 0, (topic, 1): 1})) as made:
        yield made


def send(client: dict[str, str], topic: str, *values: bytes | None) -> None:
    producer = Producer({**client})
    for partition in (0, 1):
        for value in values:
            producer.produce(topic, value, b"k", partition, timestamp=SENT_MS)
    assert producer.flush(20) == 0


def expected(*offsets: int) -> list[Seen]:
    return [seen(at, Record(at, b"k", VALUES[at], SENT_MS).fingerprint(), VALUES[at]) for at in offsets]


def part(topic: str, partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(topic, partition, start, end, "id")


def test_each_batch_gets_what_is_in_its_ranges(reader: LogReader, topic: str) -> None:
    """In whatever order partitions are asked for, and however far others have been read meanwhile."""
    assert reader.records(part(topic, 1, 1, 5)) == expected(1, 2, 3, 4)
    assert reader.records(part(topic, 0, 0, 2)) == expected(0, 1)
    assert reader.records(part(topic, 0, 2, 5)) == expected(2, 3, 4)


def test_a_batch_that_goes_back_is_noticed(reader: LogReader, topic: str) -> None:
    assert len(reader.records(part(topic, 0, 0, 3))) == 3
    with pytest.raises(Rewind, match=r"decisions/0 was read up to 3, and 2 is asked for"):
        reader.records(part(topic, 0, 2, 4))


def test_a_record_of_a_newer_onefold_is_refused(reader: LogReader, client: dict[str, str], topic: str) -> None:
    send(client, topic, b"\2whatever")
    with pytest.raises(Refused, match="format 2"):
        reader.records(part(topic, 0, 0, 6))


def test_what_kafka_does_not_give_is_waited_for_and_then_said(
    reader: LogReader, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_SILENCE_S", 1.0)
    with pytest.raises(Waiting, match=r"does not give .*\.decisions/0@5"):
        reader.records(part(topic, 0, 0, 6))


def test_records_that_are_gone_are_no_reason_to_wait(client: dict[str, str], topic: str) -> None:
    """The next start finds out what is missing."""
    made = LogReader(client["bootstrap.servers"], {}, {(topic, 0): 50})
    with closing(made) as reader, pytest.raises(Waiting, match=r"cannot give .*\.decisions/0"):
        reader.records(part(topic, 0, 50, 51))


def test_who_reads_is_told_when_the_query_ends(reader: LogReader, topic: str) -> None:
    told: list[SinkError] = []

    def reads() -> None:
        try:
            reader.records(part(topic, 0, 0, 6))
        except SinkError as error:
            told.append(error)

    thread = threading.Thread(target=reads, daemon=True)
    thread.start()
    eventually(lambda: len(reader._read[topic, 0]) == len(VALUES), 20, "it waits for one more")
    reader.close()
    thread.join(20)
    assert [str(error) for error in told] == ["the query ends"]
