"""Two implementations with the same guarantees, the simulated log and a real broker, for protocol tests against both."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from onefold.processor.core.abc import TransactionSession
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Headers
from onefold.processor.io.admin import create_topics
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.testing import SimulatedLog, SimulatedSession
from tests.support.infrastructure import delete_topics, transactional


def nothing_topology() -> Topology:
    """A topology with unique topics; the handler is never called."""
    name = f"protocol-{uuid.uuid4().hex[:8]}"
    return Topology(name, (f"{name}.in",), str, object, lambda state, event: (state, ()), {f"{name}.out": None})


class World(ABC):
    """A log with the topics of a topology, one partition each."""

    def __init__(self) -> None:
        self.topology = nothing_topology()
        self.input = self.topology.inputs[0]
        self.output = next(iter(self.topology.outputs))
        self.changelog = self.topology.changelog

    @abstractmethod
    def session(self) -> TransactionSession:
        """A session of task 0, not yet open."""

    @abstractmethod
    def committed(self, topic: str) -> list[bytes | None]:
        """Values readable as committed."""

    @abstractmethod
    def append(
        self, topic: str, *values: bytes, commit: bool = True, headers: Headers = (), timestamp_ms: int = 0
    ) -> None:
        """Write values in another producer's transaction; without a timestamp, any will do."""

    @abstractmethod
    def leave_open(self, topic: str) -> Callable[[], None]:
        """Begin another producer's transaction with a write, and return the function that ends the transaction."""

    @abstractmethod
    def recreate(self, topic: str) -> None:
        """Delete and create the topic."""

    @abstractmethod
    def limit(self, topic: str, bytes_max: int) -> None:
        """Limit the size of the topic's records from now on."""


class SimulatedWorld(World):
    """On the simulated log."""

    def __init__(self) -> None:
        super().__init__()
        self.log = SimulatedLog()
        for topic in (self.input, self.output, self.changelog):
            self.log.create(topic, 1)

    def session(self) -> SimulatedSession:
        return SimulatedSession(self.log, self.topology, 0)

    def committed(self, topic: str) -> list[bytes | None]:
        return [entry.value for _, entry in self.log.read(topic, 0, 0)[0]]

    def append(
        self, topic: str, *values: bytes, commit: bool = True, headers: Headers = (), timestamp_ms: int = 0
    ) -> None:
        epoch = self.log.init("somebody")
        for value in values:
            self.log.write("somebody", epoch, topic, 0, b"s", value, headers, timestamp_ms)
        self.log.end("somebody", epoch, commit=commit)

    def leave_open(self, topic: str) -> Callable[[], None]:
        epoch = self.log.init("lingering")
        self.log.write("lingering", epoch, topic, 0, b"s", b"open", ())
        return lambda: self.log.end("lingering", epoch, commit=False)

    def recreate(self, topic: str) -> None:
        self.log.create(topic, 1)

    def limit(self, topic: str, bytes_max: int) -> None:
        self.log.bytes_max[topic] = bytes_max


class KafkaWorld(World):
    """On a real broker."""

    def __init__(self, client: dict[str, str]) -> None:
        super().__init__()
        self.client = client
        self.admin = AdminClient({**client})
        create_topics(self.topology, 1, client)

    def session(self) -> KafkaSession:
        return KafkaSession(self.topology, 0, self.client)

    def committed(self, topic: str) -> list[bytes | None]:
        settings = {
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        values: list[bytes | None] = []
        with closing(Consumer({**self.client, **settings})) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while (message := consumer.poll(10)) is not None and message.error() is None:
                values.append(message.value())
        assert message is not None, f"the end of {topic} was not reached"
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._PARTITION_EOF, error
        return values

    def append(
        self, topic: str, *values: bytes, commit: bool = True, headers: Headers = (), timestamp_ms: int = 0
    ) -> None:
        producer = self._producer("somebody")
        for value in values:
            producer.produce(topic, value, b"s", 0, timestamp=timestamp_ms, headers=list(headers))
        producer.flush(10)
        producer.commit_transaction(20) if commit else producer.abort_transaction(20)

    def leave_open(self, topic: str) -> Callable[[], None]:
        producer = self._producer("lingering")
        producer.produce(topic, b"open", b"s", 0)
        producer.flush(10)
        return lambda: producer.abort_transaction(20)

    def recreate(self, topic: str) -> None:
        delete_topics(self.admin, (topic,))
        create_topics(self.topology, 1, self.client)

    def limit(self, topic: str, bytes_max: int) -> None:
        changed = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[changed])
        self.admin.incremental_alter_configs([resource])[resource].result()

    def _producer(self, name: str) -> Producer:
        producer = transactional({**self.client, "log_level": 0}, f"{self.topology.name}-{name}")
        producer.begin_transaction()
        return producer
