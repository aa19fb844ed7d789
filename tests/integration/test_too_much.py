"""What is too much for the cluster, on a real broker: the partition goes on, and only what can never be written is set aside."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.processor.core.errors import Abortable, TooMuch
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Event, Record
from onefold.processor.io import kafka
from onefold.processor.io.admin import connect, create_topics
from onefold.processor.io.decision_log import KafkaDecisionLog
from onefold.processor.io.inputs import KafkaInputs
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.task import Task
from tests.support.proxy import KafkaProxy
from tests.support.tasks import elastic_task
from tests.support.waiting import eventually
from tests.support.worlds import KafkaWorld

pytestmark = pytest.mark.promise("too-large-records")


class Plain:
    """Values are bytes on both sides."""

    def decode(self, record: Record) -> bytes:
        return record.value or b""

    def encode(self, topic: str, value: bytes) -> bytes:
        return value

    def encode_state(self, state: Any) -> bytes:
        return b"1"

    def decode_state(self, topology: Topology, data: bytes) -> Any:
        return 1


def echo(state: Any, event: Event) -> tuple[Any, Any]:
    return 1, [(f"{event.topic.partition('.')[0]}.out", event.value)]


@pytest.fixture
def topology() -> Topology:
    """Echoes values; the first bytes are the key."""
    name = f"much-{uuid.uuid4().hex[:8]}"
    return Topology(name, (f"{name}.in",), lambda value: value[:64].hex(), object, echo, {f"{name}.out": None})


def until_drained(task: Task, records: int, tries: int = 40) -> list[Abortable]:
    """Turn it until so many records are folded. Returns what was aborted meanwhile."""
    aborted: list[Abortable] = []
    folded = 0
    for _ in range(tries):
        try:
            folded += task.turn()
        except Abortable as error:
            aborted.append(error)
        if folded >= records:
            return aborted
    pytest.fail(f"{folded} of {records} records were folded; aborted: {aborted[-3:]}")


def committed(client: dict[str, str], topic: str) -> list[tuple[bytes, dict[str, bytes | None]]]:
    """Value and headers of the records that are visible, of all partitions."""
    found: list[tuple[bytes, dict[str, bytes | None]]] = []
    settings = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**client, **settings, "enable.auto.commit": False})
    partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    ends = 0
    while ends < len(partitions):
        message = consumer.poll(10)
        assert message is not None, f"the end of {topic} was not reached"
        if message.error():
            ends += 1
        else:
            headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            found.append((message.value() or b"", dict(headers)))
    consumer.close()
    return found


@pytest.fixture
def task_of(client: dict[str, str], topology: Topology) -> Iterator[Any]:
    """Opens a task on a session; all are closed in the end."""
    opened: list[Task] = []

    def make(session: KafkaSession) -> Task:
        task = elastic_task(topology, session, Plain(), clock=time.monotonic)
        task.open()
        opened.append(task)
        return task

    yield make
    for task in opened:
        task.abandon()


def send(client: dict[str, str], topic: str, partition: int, values: list[bytes]) -> None:
    producer = Producer({**client, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, None, partition)
    assert producer.flush(20) == 0


@pytest.fixture
def misrouted(client: dict[str, str], topology: Topology) -> tuple[bytes, list[bytes]]:
    """In partition 0 a record that fits into its topic, but not with the key and the header that its copy in another partition
    needs; and the values of the others that belong there.
    """
    admin = connect(client)
    small = NewTopic(topology.inputs[0], 2, 1, config={"max.message.bytes": "2000"})
    for future in admin.create_topics([small]).values():
        future.result()
    create_topics(topology, 2, client, inputs=False, decisions=True)
    session = KafkaSession(topology, 0, client)
    values = [os.urandom(300) for _ in range(30)]
    large = os.urandom(1850)
    while session.partition_of(str(topology.keys[topology.inputs[0]](large))) == 0:
        large = os.urandom(1850)
    for value in (*values[:20], large, *values[20:]):
        send(client, topology.inputs[0], 0, [value])
    return large, [
        value for value in values if session.partition_of(str(topology.keys[topology.inputs[0]](value))) == 0
    ]


def assert_set_aside(client: dict[str, str], topology: Topology, large: bytes, here: list[bytes], why: bytes) -> None:
    """That record alone, and the partition went on."""
    ((value, headers),) = committed(client, topology.dead[topology.inputs[0]])
    assert value == large
    assert why in (headers["onefold-reason"] or b"")
    assert sorted(value for value, _ in committed(client, next(iter(topology.outputs)))) == sorted(here)


def test_a_repartitioned_copy_that_is_too_large_becomes_a_dead_letter(
    client: dict[str, str], topology: Topology, task_of: Any, misrouted: tuple[bytes, list[bytes]]
) -> None:
    aborted = until_drained(task_of(KafkaSession(topology, 0, client)), 31)

    assert all(isinstance(error, TooMuch) for error in aborted)
    assert_set_aside(client, topology, *misrouted, b"MSG_SIZE_TOO_LARGE")


@pytest.mark.promise("refused-before-decided")
def test_with_replicas_it_is_not_decided(
    client: dict[str, str], topology: Topology, misrouted: tuple[bytes, list[bytes]]
) -> None:
    """A publisher could never write it, and nothing that was decided after it."""
    logs = [KafkaDecisionLog(topology.decisions, 0, client) for _ in range(2)]
    sessions = [KafkaSession(topology, 0, client) for _ in range(2)]
    inputs, proposals = KafkaInputs(topology, 0, client), MsgpackProposals()
    decider = LogDecider(topology, "a", inputs, logs[0], sessions[0], proposals, clock=time.monotonic)
    replica = Task(topology, inputs, Plain(), decider, clock=time.monotonic)
    replica.open()

    def all_is_decided() -> bool:
        with suppress(TooMuch):
            replica.turn()
        return sum(replica.progress.counts) == 31

    eventually(all_is_decided, 60, "every record is decided")
    publisher = Publisher(topology, 0, "a", sessions[1], logs[1], proposals)
    publisher.open()

    def all_is_published() -> bool:
        with suppress(TooMuch):  # the first time: together they are more than the topic takes of a batch
            publisher.turn()
        return publisher.progress.counts == replica.progress.counts

    eventually(all_is_published, 60, "it is published")
    publisher.close()
    replica.close()
    assert_set_aside(client, topology, *misrouted, b"takes records of 2,000 bytes")


def test_a_transaction_may_have_more_records_than_the_producers_queue(
    client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit waits for room, and nothing is aborted."""
    monkeypatch.setattr(kafka, "QUEUE_MESSAGES", 100)
    world = KafkaWorld(client)
    session = world.session()
    session.open()
    session.begin()
    session.produce([(world.output, 0, b"k", b"%d" % number, None) for number in range(3_000)])
    session.commit()
    session.close()

    assert world.committed(world.output) == [b"%d" % number for number in range(3_000)]


@pytest.mark.long  # 11 s
def test_a_backlog_gets_through_a_slow_link(
    client: dict[str, str],
    topology: Topology,
    task_of: Any,
    kafka_proxy: KafkaProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the time that a delivery has, a tenth of it gets through at most. Nothing is set aside."""
    monkeypatch.setattr(kafka, "DELIVERY_TIMEOUT_MS", 1_500)
    create_topics(topology, 1, client)
    values = [os.urandom(5_000) for _ in range(600)]
    send(client, topology.inputs[0], 0, values)
    slow = {**client, "bootstrap.servers": kafka_proxy.bootstrap_servers}
    task = task_of(KafkaSession(topology, 0, slow))
    kafka_proxy.slow(bytes_per_s=500_000)
    aborted = until_drained(task, 600)

    assert aborted, "the first try was too much"
    kafka_proxy.slow(bytes_per_s=None)
    assert sorted(value for value, _ in committed(client, next(iter(topology.outputs)))) == sorted(values)
    assert committed(client, topology.dead[topology.inputs[0]]) == []
