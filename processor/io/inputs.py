"""Kafka: the reader of a task's inputs."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold import kafka_client
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record
from onefold.processor.io.admin import ask_topic_ids, cluster_id, connect, identity, partitions_of
from onefold.processor.io.partitioner import partition_of
from onefold.processor.io.range_reader import position_after

# For a client's first metadata request. Without metadata, librdkafka repeats each request after half a second.
ACQUAINT_S = 1.0
# How long the broker gathers records for a fetch, and for a fetch at the end of a changelog, where no records follow.
FETCH_WAIT_MS, RESTORE_WAIT_MS = 100, 10
# The broker answers a fetch with this many bytes, or after the time above, so records are gathered at the broker. A slow
# input thus causes at most ten transactions a second (docs/decisions/batches-and-limits.md). The value is half of the most that
# a partition returns in one fetch, so a backlog never waits.
FETCH_BYTES = 524_288
# Memory for fetched records, per task.
FETCH_QUEUE_KBYTES = 16_384

# Record._make without its Python call.
_record = partial(tuple.__new__, Record)


class KafkaInputs:
    """One task's partition of every input, on a real cluster (see `core.abc.Inputs`).

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        fetch_wait_ms: how long the broker gathers records for a fetch.
        partitions: the number of partitions at the start of the process; None: the present number.
        admin: an admin client, perhaps shared. None: a new client.
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
        # Not `or`: the length of a client is that of its queue, so a client with an empty queue is false.
        self._admin = connect(self._client) if admin is None else admin
        self.partitions = partitions or partitions_of(self._admin, topology)
        (life,) = ask_topic_ids(self._admin, [topology.changelog])().values()
        self.owner = Owner(cluster_id(self._admin), topology.name, life)
        self._consumer: Consumer | None = None
        self._positions: dict[str, int] = {}

    def partition_of(self, key: str) -> int:
        """Return the partition of the inputs for `key`."""
        return partition_of(key, self.partitions)

    def identities(self) -> dict[str, PartitionIdentity]:
        """Return the identity of the partition, per input topic."""
        return {topic: identity(self._admin, topic, self.partition) for topic in self._topology.reads}

    def ask_topic_ids(self) -> Callable[[], dict[str, str]]:
        """Start a request for the ids of the input topics."""
        return ask_topic_ids(self._admin, self._topology.reads)

    def new_consumer(self, wait_ms: int) -> Consumer:
        """Create a consumer of committed records with assigned positions. A fetch waits for `wait_ms` for more records."""
        return kafka_client.consumer(
            {
                **self._client,
                "enable.partition.eof": True,
                "fetch.min.bytes": FETCH_BYTES,
                "fetch.wait.max.ms": wait_ms,
                # The pause of fetching after the queue was full. The default of a second would stall a backlog.
                "fetch.queue.backoff.ms": 50,
                "queued.max.messages.kbytes": FETCH_QUEUE_KBYTES,
            }
        )

    def seek(self, offsets_next: Mapping[str, int]) -> None:
        """Set the offset to read next, per input topic."""
        if self._consumer is None:
            self._consumer = self.new_consumer(self._fetch_wait_ms)
        self._consumer.assign([TopicPartition(topic, self.partition, at) for topic, at in offsets_next.items()])
        self._positions = dict(offsets_next)

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        """Return the available records, at most `count_max`. Waits at most `timeout_s` for the first record."""
        assert self._consumer is not None
        # librdkafka's consume waits for the full number of messages or the timeout
        messages = self._consumer.consume(1, timeout_s)
        if messages and count_max > 1:
            messages += self._consumer.consume(count_max - 1, 0)
        if any(map(Message.error, messages)):
            for message in messages:
                self._positions[message.topic() or ""] = position_after(message, "reading the input")
            messages = [message for message in messages if not message.error()]
        # Column by column, so that the loops run in C.
        topics: list[Any] = list(map(Message.topic, messages))
        offsets: list[Any] = list(map(Message.offset, messages))
        for topic, offset in dict(zip(topics, offsets, strict=True)).items():
            self._positions[topic] = max(self._positions[topic], offset + 1)
        keys, values = map(Message.key, messages), map(Message.value, messages)
        # The message is the envelope, so timestamp and headers are extracted only on demand.
        found = map(_record, zip(topics, repeat(self.partition), offsets, keys, values, messages, strict=False))
        return self.owner.of(list(found))

    def positions(self) -> dict[str, int]:
        """Return the offset to read next, per input topic. The position includes markers at the end."""
        return self._positions

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def acquaint(self, client: Producer | Consumer) -> None:
        """Request metadata, so that the client knows the brokers before its first other request.

        A new client that asks for a coordinator or a partition's start too early repeats the request after a fixed 500 ms.
        If no broker responds, the next call raises the error.
        """
        with contextlib.suppress(KafkaException):
            # The first response lists the cluster's brokers, and the client drops the bootstrap address. The second response
            # comes over a connection that remains.
            for _ in range(2):
                client.list_topics(self._topology.changelog, timeout=ACQUAINT_S)
