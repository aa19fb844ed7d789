"""A log in memory with the semantics that were measured on a real broker.

- A transaction ends with a marker in every partition that it wrote to; markers take offsets.
- Readers of committed records stop at the last stable offset: before the first record of a transaction that is open,
  even when later transactions have committed.
- Initialising a transactional id raises its epoch and aborts what its predecessor left open; a request with an old epoch is
  turned away. A request of the *same* epoch is not, however late it comes: that is the hole of clients without KIP-890,
  and `late_end` reproduces it.
- A deleted and re-created topic has another id, and offsets from zero.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import Fenced, Refused
from onefold.processor.core.values import Headers
from onefold.processor.testing.partition import partition_of


class Entry(NamedTuple):
    """One offset of a partition: a record, or a marker (then key, value, headers and timestamp mean nothing)."""

    transaction: int
    marker: bool
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int = 0


class SimulatedEnvelope(NamedTuple):
    """What a record carries besides key and value, as a message of the Kafka client gives it."""

    entry: Entry

    def timestamp(self) -> tuple[int, int]:
        """The sender's clock (1, as librdkafka has it), and milliseconds since 1970."""
        return 1, self.entry.timestamp_ms

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """None when there are none."""
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
    """Topics, partitions, producers and transactions. Not a broker: no time passes in it."""

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self._topics: dict[str, _Topic] = {}
        self._producers: dict[str, _TestProducer] = {}
        self._state: dict[int, str] = {0: "committed"}
        self._topic_ids = 0
        #: Topics that take no larger records than so many bytes; the others take any.
        self.bytes_max: dict[str, int] = {}
        #: Topics from which Kafka may delete records whose key came again.
        self.compacted = set[str]()

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic; one of that name is deleted first, as an administrator would."""
        self._topic_ids += 1
        self._topics[topic] = _Topic(f"topic-{self._topic_ids}", [[] for _ in range(partitions)])

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
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
        """Write a record, by default outside of any transaction and in the partition of its key. Returns its offset."""
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
        """Retention removes what lies before that offset."""
        self._topics[topic].starts[partition] = start

    def stable(self, topic: str, partition: int) -> int:
        """The last stable offset."""
        entries = self._topics[topic].partitions[partition]
        open_ = (at for at, entry in enumerate(entries) if self._state[entry.transaction] == "open")
        return next(open_, len(entries))

    def read(
        self, topic: str, partition: int, start: int, count_max: int = 1 << 30
    ) -> tuple[list[tuple[int, Entry]], int]:
        """Committed records from an offset on, and the offset to go on from. Raises `Refused` when that offset is gone."""
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
        """A new epoch; what the id had open is aborted."""
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
        """A record of the id's transaction, which the first record opens."""
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
        """Commit or abort the id's transaction. Without one there is nothing to check and nothing to do."""
        producer = self._producers[transactional_id]
        if producer.open is None and producer.epoch == epoch:
            return
        self._finish(self._current(transactional_id, epoch), "committed" if commit else "aborted")

    def late_end(self, transactional_id: str, epoch: int, *, commit: bool) -> bool:
        """A request to end a transaction that was under way for long. Says whether the broker took it."""
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
