"""A cluster of three real brokers, which a test may kill or stop."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from onefold.config import private_files
from onefold.stack import jars, java
from onefold.stack.broker import JVM_FLAGS, Broker
from onefold.stack.child import Child
from onefold.stack.embedded import default_cache
from onefold.stack.ports import ReservedPorts, free_ports
from tests.support.waiting import eventually

NODES = 3
# Small, because three brokers run beside processors and Spark, and each holds few topics.
HEAP = "-Xmx320m"
CLUSTER = "b25lZm9sZC10aHJlZS1ub2"
READY_S = 90.0
ANSWER_S = 10.0


@dataclass(frozen=True)
class Node(Broker):
    """One broker, which is also a controller. All timeouts are Kafka's defaults.

    Attributes:
        number: node id.
        voters: controllers of the cluster, in Kafka's format.
    """

    number: int
    voters: str

    def prepare(self) -> None:
        """Write the configuration, and format the storage for the cluster."""
        private_files.folder(self.home)
        properties = self.home / "server.properties"
        properties.write_text(self.configuration(self.home / "data"), encoding="utf-8")
        formatting = self.tool(
            "kafka.tools.StorageTool", "format", f"--cluster-id={CLUSTER}", "--config", str(properties)
        )
        subprocess.run(formatting, check=True, capture_output=True, timeout=60)

    def configuration(self, data: Path) -> str:
        """Configuration with three replicas of every partition, of which two must be in sync."""
        here, controller = f"PLAINTEXT://{self.bootstrap_servers}", f"CONTROLLER://127.0.0.1:{self.controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": self.number,
            "controller.quorum.voters": self.voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{here},{controller}",
            "advertised.listeners": here,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            "auto.create.topics.enable": "false",
            "default.replication.factor": NODES,
            "min.insync.replicas": NODES - 1,
            # Fewer partitions than the default of 50 load faster after a failover on two cores.
            "offsets.topic.num.partitions": 6,
            "transaction.state.log.num.partitions": 6,
            "log.retention.ms": -1,
            # The default of 128 MB is too much for a heap of 320 MB.
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def command(self) -> list[str]:
        """Command with a small heap."""
        return [*self._java(*JVM_FLAGS, HEAP), "kafka.Kafka", str(self.home / "server.properties")]


class Cluster:
    """Brokers that a test can kill, stop and start again by number."""

    def __init__(self, nodes: list[Node], folder: Path) -> None:
        self.nodes = {node.number: node for node in nodes}
        self._children = {node.number: Child(node.service(folder / f"broker-{node.number}.log")) for node in nodes}
        self.bootstrap_servers = ",".join(node.bootstrap_servers for node in nodes)
        self.client = {"bootstrap.servers": self.bootstrap_servers}
        self.admin = AdminClient({**self.client, "log_level": 0})

    def start(self, *numbers: int) -> None:
        """Start brokers, and wait until the metadata have all brokers of the cluster."""
        for number in numbers:
            self._children[number].start()
        for number in numbers:
            self._children[number].wait_ready(READY_S)
        eventually(lambda: self._live() == set(self.nodes), READY_S, "all brokers are members of the cluster")

    def kill(self, number: int) -> None:
        """Kill with SIGKILL."""
        self._children[number].kill()

    def stop(self, number: int) -> None:
        """Stop with SIGTERM, and wait for the controlled shutdown."""
        self._children[number].stop()

    def dead(self) -> list[int]:
        """Brokers that do not run."""
        return [number for number, child in self._children.items() if not child.running()]

    def settled(self) -> bool:
        """Whether each partition has a leader and all its replicas in sync."""
        topics = self.admin.list_topics(timeout=ANSWER_S).topics.values()
        return all(
            partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
            for topic in topics
            for partition in topic.partitions.values()
        )

    def coordinator(self, group: str) -> int:
        """The broker that coordinates the group."""
        described = self.admin.describe_consumer_groups([group], request_timeout=ANSWER_S)[group].result()
        return int(described.coordinator.id)

    def controller(self) -> int:
        """Leader of the controller quorum, from the quorum's state file, because metadata name an arbitrary broker."""
        live = next(node for number, node in self.nodes.items() if self._children[number].running())
        state = live.home / "data" / "__cluster_metadata-0" / "quorum-state"
        return int(json.loads(state.read_text(encoding="utf-8"))["leaderId"])

    def end(self) -> None:
        """Kill all brokers, because test data need no controlled shutdown."""
        for child in self._children.values():
            child.kill()

    def _live(self) -> set[int]:
        return set(self.admin.list_topics(timeout=ANSWER_S).brokers)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start three brokers with data and logs in `folder`."""
    cache = default_cache()
    found = java.locate(cache)
    archives = jars.ensure("broker", cache, found.executable, lambda done, total: None)
    with ExitStack() as cleanup:
        ports = free_ports(2 * NODES)
        keeping = ReservedPorts()
        cleanup.callback(keeping.close)
        keeping.keep(ports)
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports[NODES:], 1))
        nodes = [
            Node(folder / f"node-{number}", port, controller_port, found.executable, archives, number, voters)
            for number, (port, controller_port) in enumerate(zip(ports[:NODES], ports[NODES:], strict=True), 1)
        ]  # fmt: skip
        for node in nodes:
            node.prepare()
        made = Cluster(nodes, folder)
        cleanup.callback(made.end)
        made.start(*made.nodes)
        yield made
