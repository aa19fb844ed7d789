"""The dependencies of the write protocol: the rows of a batch, the topics, and the scheduler of the threads.

In production these are Spark (`spark/rows.py`), Kafka (`kafka/topics.py`) and threads (`threads.py`). With implementations of a
test, a write runs without Spark, and the test decides each switch between two sinks.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, Self

import pyarrow as pa

from onefold.spark_sink.landing.ledger import LastRecord, Partition


class BatchRows(Protocol):
    """The records of one micro-batch, as rows for the staging tables, read lazily. `spark/read.py` has the columns."""

    def held(self, offsets: int, reread: bool) -> AbstractContextManager[Self]:
        """Hold the rows for the duration of the block.

        Args:
            offsets: the number of offsets in the batch.
            reread: the caller reads the rows more than once, and Spark must read Kafka only once.
        """

    def within(self, spans: Mapping[Partition, range], offsets: int) -> Self:
        """The rows of the records with an `offset` in the span of their partition. Partitions without a span have no rows.

        Args:
            spans: the offsets by partition.
            offsets: the number of offsets in all spans.
        """

    def only(self, records: Sequence[tuple[str, int, int]]) -> Self:
        """The rows of the given records: topic, partition and `offset` of each."""

    def bytes(self) -> int:
        """The size of all record lines in bytes, without the few rows of reductions."""

    def reduced_places(self) -> pa.Table:
        """The columns topic, partition, offset and at_ms of each reduced record, and `reads` with its topic."""

    def to_arrow(self) -> pa.Table:
        """All rows, on the driver."""


@dataclass(frozen=True)
class Reach:
    """The offsets [start, end) in the log of a partition, including uncommitted records."""

    start: int
    end: int


@dataclass(frozen=True)
class KafkaRecord:
    """One record of Kafka. `timestamp` is in milliseconds since 1970. `headers` has the names of the headers."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: frozenset[str] = frozenset()

    def fingerprint(self) -> int:
        """CRC-32 of the key, the value and the timestamp's decimal digits, equal to `read.FINGERPRINT` in Spark."""
        return zlib.crc32((self.key or b"") + (self.value or b"") + str(self.timestamp).encode())


class Records(Protocol):
    """Reads single records. Raises Retriable, with the reason, if Kafka does not respond."""

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        """The first record at `offset` or later. None: the partition has no such record."""


class TopicInfo(Records, Protocol):
    """Queries to Kafka about topics. Every method raises Retriable, with the reason, if Kafka does not respond."""

    def ids(self, topics: list[str]) -> dict[str, str]:
        """The ids of `topics`. A recreated topic has a new id."""

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        """The first and the end offset of every partition of `topics`."""

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        """The fingerprint of the record at exactly `last.offset`. None: no record has the offset."""

    def is_compacted(self, topic: str) -> bool:
        """Whether compaction may remove single records of the topic."""


class Scheduler(Protocol):
    """Runs functions concurrently, and lets a caller wait for a condition."""

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Start `run` concurrently with the caller."""

    def wait(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` holds. Each change of a condition requires a call of `changed`."""

    def changed(self) -> None:
        """Make all waiting callers evaluate their conditions."""
