"""Kafka: reading the inputs of a task."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold import kafka_client
from onefold.processor.core.abc import Identity
from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record
from onefold.processor.io.admin import ask_topic_ids, cluster_id, connect, identity, partitions_of
from onefold.processor.io.partitioner import partition_of
from onefold.processor.io.reading import position_after

# How long to wait for a first sight of the cluster; without it librdkafka asks again half a second later, each time.
ACQUAINT_S = 1.0
# How long the broker gathers records for a fetch; and at the end of a changelog, where none come.
FETCH_WAIT_MS, RESTORE_WAIT_MS = 100, 10
# A fetch is answered when there is this much, or after that time: so records are gathered where they are. At less than 5 MB/s a
# task has ten transactions a second, and a record waits 50 ms for its own (docs/decisions/batches-and-limits.md).
# Half of what a partition gives at once, so that a backlog is never waited for.
FETCH_BYTES = 524_288
# Memory for fetched records, per task. A quarter of a second at full speed.
FETCH_QUEUE_KBYTES = 16_384

# Record._make without the detour through Python.
_record = partial(tuple.__new__, Record)


class KafkaInputs:
    """One task's partition of every input, on a real cluster (see `core.abc.Inputs`).

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        fetch_wait_ms: how long the broker gathers records for a fetch.
        partitions: of the inputs, when the process was started; None: as many as there are now.
        admin: an admin client, which may have other users. None: a new one.
    """

    def __init__(
        self,
        topology: Topology,
        partition: int,
        client: Mapping[str, str],
        *,
        fetch_wait_ms: int = FETCH_WAIT_MS,
        partitions: int | None = None,
        admin: AdminClient | None = None,
    ) -> None:
        self.partition = partition
        self._topology = topology
        self._client = dict(client)
        self._fetch_wait_ms = fetch_wait_ms
        # Not `or`: a client has a length, that of its queue, and is false while the queue is empty.
        self._admin = connect(self._client) if admin is None else admin
        self.partitions = partitions or partitions_of(self._admin, topology)
        (life,) = ask_topic_ids(self._admin, [topology.changelog])().values()
        self.owner = Owner(cluster_id(self._admin), topology.name, life)
        self._consumer: Consumer | None = None
        self._positions: dict[str, int] = {}

    def partition_of(self, key: str) -> int:
        """The partition of the inputs where all records of `key` belong."""
        return partition_of(key, self.partitions)

    def identities(self) -> dict[str, Identity]:
        """Per input topic."""
        return {topic: identity(self._admin, topic, self.partition) for topic in self._topology.reads}

    def ask_topic_ids(self) -> Callable[[], dict[str, str]]:
        """Ask now which topics the inputs' names stand for."""
        return ask_topic_ids(self._admin, self._topology.reads)

    def new_consumer(self, wait_ms: int) -> Consumer:
        """A consumer that reads committed records from assigned positions; a fetch waits so long for more of them."""
        return kafka_client.consumer(
            {
                **self._client,
                "enable.partition.eof": True,
                "fetch.min.bytes": FETCH_BYTES,
                "fetch.wait.max.ms": wait_ms,
                # How soon fetching goes on after the queue was full; a second by default, in which a backlog stands.
                "fetch.queue.backoff.ms": 50,
                "queued.max.messages.kbytes": FETCH_QUEUE_KBYTES,
            }
        )

    def seek(self, offsets_next: Mapping[str, int]) -> None:
        """Read the inputs from there on."""
        if self._consumer is None:
            self._consumer = self.new_consumer(self._fetch_wait_ms)
        self._consumer.assign([TopicPartition(topic, self.partition, at) for topic, at in offsets_next.items()])
        self._positions = dict(offsets_next)

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        """What is there, at most so many records; waits at most that time for the first."""
        assert self._consumer is not None
        # librdkafka's consume waits until it has all that it may return, or the time is over
        messages = self._consumer.consume(1, timeout_s)
        if messages and count_max > 1:
            messages += self._consumer.consume(count_max - 1, 0)
        if any(map(Message.error, messages)):
            for message in messages:
                self._positions[message.topic() or ""] = position_after(message, "reading the input")
            messages = [message for message in messages if not message.error()]
        # Column by column, the loops are all in C.
        topics: list[Any] = list(map(Message.topic, messages))
        offsets: list[Any] = list(map(Message.offset, messages))
        for topic, offset in dict(zip(topics, offsets, strict=True)).items():
            self._positions[topic] = max(self._positions[topic], offset + 1)
        keys, values = map(Message.key, messages), map(Message.value, messages)
        # The message itself is the envelope: the timestamp and the headers stay in it until somebody asks.
        found = map(_record, zip(topics, repeat(self.partition), offsets, keys, values, messages, strict=False))
        return self.owner.of(list(found))

    def positions(self) -> dict[str, int]:
        """Per input topic the offset to read next, markers at the end included."""
        return self._positions

    def close(self) -> None:
        """End the reading."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def acquaint(self, client: Producer | Consumer) -> None:
        """Let it look at the cluster before it is asked for anything.

        A new client that is asked for a coordinator, or for the start of a partition, before it knows a broker asks again
        after a fixed 500 ms: with a restore twice, of a takeover of 1.3 s. When nobody answers, the next call says so.
        """
        with contextlib.suppress(KafkaException):
            # By the first answer it knows the cluster, and drops the address that it was given; the second one comes over
            # the connection that stays.
            for _ in range(2):
                client.list_topics(self._topology.changelog, timeout=ACQUAINT_S)
