"""A log in memory with the semantics of a Kafka broker.

- A transaction ends with a marker in every partition with its records. Markers take offsets.
- Readers of committed records stop at the last stable offset: before the first record of an open transaction, even if later
  transactions are committed.
- Initialising a transactional id raises the epoch, and aborts the predecessor's open transaction. The broker rejects requests
  with an old epoch, but accepts a late request with the *same* epoch. This is the gap of clients without KIP-890, reproduced by
  `late_end`.
- A recreated topic has another id, and offsets from zero.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import Fenced, Refused
from onefold.processor.core.values import Headers
from onefold.processor.testing.partition import partition_of


class Entry(NamedTuple):
    """One offset of a partition: a record, or a marker (without meaningful key, value, headers and timestamp)."""

    transaction: int
    marker: bool
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int = 0


class SimulatedEnvelope(NamedTuple):
    """The timestamp and the headers of a record, with the methods of a Kafka client's message."""

    entry: Entry

    def timestamp(self) -> tuple[int, int]:
        """The type of the timestamp (1: the sender's clock, as in librdkafka), and milliseconds since 1970."""
        return 1, self.entry.timestamp_ms

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers, or None without headers."""
        return list(self.entry.headers) or None


@dataclass
class _Topic:
    topic_id: str
    partitions: list[list[Entry]]
    starts: dict[int, int] = field(default_factory=dict)


@dataclass
class _TestProducer:
    epoch: int = 0
    open: int | None = None
    touched: set[tuple[str, int]] = field(default_factory=set)


class SimulatedLog:
    """Topics, partitions, producers and transactions in memory. Unlike in a broker, no time passes."""

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self._topics: dict[str, _Topic] = {}
        self._producers: dict[str, _TestProducer] = {}
        self._state: dict[int, str] = {0: "committed"}
        self._topic_ids = 0
        #: The maximum bytes of a value, by topic. Other topics have no limit.
        self.bytes_max: dict[str, int] = {}
        #: Compacted topics: only the last record of a key is sure to stay.
        self.compacted = set[str]()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic. An existing topic of the same name is deleted first."""
        self._topic_ids += 1
        self._topics[topic] = _Topic(f"topic-{self._topic_ids}", [[] for _ in range(partitions)])

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic."""
        return len(self._topics[topic].partitions)

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int = 0,
        transaction: int = 0,
    ) -> int:
        """Write a record, by default outside of transactions and to the partition of the key. Returns the record's offset."""
        found = self._topics[topic]
        if partition is None:
            partition = partition_of((key or b"").decode(), len(found.partitions))
        entries = found.partitions[partition]
        entries.append(Entry(transaction, False, key, value, tuple(headers), timestamp_ms))
        return len(entries) - 1

    def identity(self, topic: str, partition: int) -> PartitionIdentity:
        """The topic's id and the partition's offsets, up to the high watermark."""
        found = self._topics[topic]
        return PartitionIdentity(found.topic_id, found.starts.get(partition, 0), len(found.partitions[partition]))

    def truncate(self, topic: str, partition: int, start: int) -> None:
        """Delete the records before the offset `start`, as retention does."""
        self._topics[topic].starts[partition] = start

    def stable(self, topic: str, partition: int) -> int:
        """The last stable offset."""
        entries = self._topics[topic].partitions[partition]
        open_ = (at for at, entry in enumerate(entries) if self._state[entry.transaction] == "open")
        return next(open_, len(entries))

    def read(
        self, topic: str, partition: int, start: int, count_max: int = 1 << 30
    ) -> tuple[list[tuple[int, Entry]], int]:
        """Read committed records. Returns the records and the next offset. Raises `Refused` if `start` is deleted."""
        if start < self._topics[topic].starts.get(partition, 0):
            raise Refused(Code.RECORDS_DELETED, f"{topic}/{partition} no longer holds the next offset")
        entries = self._topics[topic].partitions[partition]
        end = self.stable(topic, partition)
        found: list[tuple[int, Entry]] = []
        at = start
        while at < end and len(found) < count_max:
            entry = entries[at]
            if not entry.marker and self._state[entry.transaction] == "committed":
                found.append((at, entry))
            at += 1
        return found, at

    # --- transactions

    def init(self, transactional_id: str) -> int:
        """Initialise a transactional id, and abort its open transaction. Returns the new epoch."""
        producer = self._producers.setdefault(transactional_id, _TestProducer())
        self._finish(producer, "aborted")
        producer.epoch += 1
        return producer.epoch

    def write(
        self,
        transactional_id: str,
        epoch: int,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int = 0,
    ) -> None:
        """Write a record in the transaction of the id. The first record opens the transaction."""
        producer = self._current(transactional_id, epoch)
        if producer.open is None:
            producer.open = len(self._state)
            self._state[producer.open] = "open"
        if partition is None:
            partition = partition_of((key or b"").decode(), self.partitions(topic))
        self.append(
            topic,
            key,
            value,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
            transaction=producer.open,
        )
        producer.touched.add((topic, partition))

    def end(self, transactional_id: str, epoch: int, *, commit: bool) -> None:
        """Commit or abort the transaction of the id. Without an open transaction, the call with a valid epoch has no effect."""
        producer = self._producers[transactional_id]
        if producer.open is None and producer.epoch == epoch:
            return
        self._finish(self._current(transactional_id, epoch), "committed" if commit else "aborted")

    def late_end(self, transactional_id: str, epoch: int, *, commit: bool) -> bool:
        """Handle a delayed request to end a transaction. Returns whether the broker accepts the request."""
        try:
            self.end(transactional_id, epoch, commit=commit)
        except Fenced:
            return False
        return True

    def _current(self, transactional_id: str, epoch: int) -> _TestProducer:
        producer = self._producers[transactional_id]
        if producer.epoch != epoch:
            raise Fenced(Code.FENCED, f"{transactional_id} has epoch {producer.epoch}; {epoch} is over")
        return producer

    def _finish(self, producer: _TestProducer, outcome: str) -> None:
        if producer.open is None:
            return
        for topic, partition in sorted(producer.touched):
            self._topics[topic].partitions[partition].append(Entry(producer.open, True, None, None, ()))
        self._state[producer.open] = outcome
        producer.open = None
        producer.touched.clear()
