"""What Onefold needs of the Kafka that it brings: a decided transaction is ended in every partition, whoever is away meanwhile.

Kafka 4.3.0 to 4.4.0 take a partition that has no leader at that moment for a deleted one (KAFKA-20734): they end the transaction
without a marker there, and no reader of committed records ever gets past it. A broker that is killed, or held up for longer than
its session, is such a moment.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.stack.broker import Broker
from onefold.stack.child import Child
from onefold.stack.embedded import Infrastructure
from onefold.stack.ports import free_ports
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.promise("transactions-are-ended")]

ANSWER_S = 30.0


@dataclass(frozen=True)
class Second(Broker):
    """Another broker of the same cluster, without a controller of its own."""

    cluster: str

    def prepare(self) -> None:
        """Its folder, formatted for that cluster."""
        self.home.mkdir()
        properties = self.home / "server.properties"
        properties.write_text(self.configuration(self.home / "data"), encoding="utf-8")
        format_it = self.tool(
            "kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster}", "--config", str(properties)
        )
        subprocess.run(format_it, check=True, capture_output=True, timeout=60)

    def configuration(self, data: Path) -> str:
        """What comes last counts."""
        here = f"PLAINTEXT://{self.bootstrap_servers}"
        changed = {"process.roles": "broker", "node.id": 2, "listeners": here}
        return super().configuration(data) + "".join(f"{name}={value}\n" for name, value in changed.items())


@contextmanager
def running(broker: Broker) -> Iterator[Child]:
    """A node in the background."""
    broker.prepare()
    child = Child(broker.service(broker.home / "log"))
    child.start()
    try:
        child.wait_ready()
        yield child
    finally:
        child.ask_to_stop()
        child.stop()


def leader(admin: AdminClient, topic: str) -> int:
    """The node that leads its only partition; -1: none."""
    found = admin.list_topics(timeout=ANSWER_S).topics.get(topic)
    return found.partitions[0].leader if found and found.partitions else -1


def create(admin: AdminClient, topic: str, node: int) -> None:
    """A topic of one partition, which is on that node alone."""
    wanted = NewTopic(topic, 1, replica_assignment=[[node]])
    eventually(lambda: node in admin.list_topics(timeout=ANSWER_S).brokers, ANSWER_S, f"node {node} has joined")
    admin.create_topics([wanted])[topic].result(ANSWER_S)
    eventually(lambda: leader(admin, topic) == node, ANSWER_S, f"{topic} is led by node {node}")


def committed(servers: str, topic: str) -> list[bytes]:
    """What a reader of committed records has of a topic at this moment."""
    settings = {"bootstrap.servers": servers, "group.id": "any", "isolation.level": "read_committed", "log_level": 0}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [one.value() or b"" for one in consumer.consume(2, 1.0) if one.error() is None]


def test_a_transaction_is_committed_where_nobody_led_at_that_moment(
    infrastructure: Infrastructure, tmp_path: Path
) -> None:
    ours = infrastructure.broker
    port, controller, other = free_ports(3)
    first = Broker(tmp_path / "first", port, controller, ours.java, ours.jars)
    with running(first):
        admin = AdminClient({"bootstrap.servers": first.bootstrap_servers})
        create(admin, "here", 1)
        producer = Producer(
            {"bootstrap.servers": first.bootstrap_servers, "transactional.id": "writer", "log_level": 0}
        )
        producer.init_transactions(ANSWER_S)  # the coordinator is on the first: there is no other yet
        cluster = str(admin.list_topics(timeout=ANSWER_S).cluster_id)
        with running(Second(tmp_path / "second", other, controller, ours.java, ours.jars, cluster)) as second:
            create(admin, "there", 2)
            producer.begin_transaction()
            producer.produce("here", b"one")
            producer.produce("there", b"two")
            assert producer.flush(ANSWER_S) == 0
            os.kill(second.pid or 0, signal.SIGKILL)
            producer.commit_transaction(ANSWER_S)
            assert committed(first.bootstrap_servers, "here") == [b"one"], "it is decided"
            eventually(lambda: leader(admin, "there") == -1, ANSWER_S, "nobody leads it")
            second.stop()
            second.start()
            eventually(lambda: leader(admin, "there") == 2, ANSWER_S, "the second is back")
            there = lambda: committed(f"127.0.0.1:{other}", "there")  # noqa: E731
            assert eventually(there, ANSWER_S, "its marker is written") == [b"two"]
