"""What the landing protocol needs of the world around it: the rows of a batch, the topics, and who runs its threads.

In production these are Spark (`spark/rows.py`), Kafka (`kafka/topics.py`) and threads (`threads.py`). A test may hand in
others: then a landing runs without Spark, and every switch between two sinks is the test's own choice.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, Self

import pyarrow as pa

from onefold.spark_sink.landing.ledger import LastRecord, Partition


class BatchRows(Protocol):
    """The records of one micro-batch, as rows to be staged (`spark/read.py` has their columns). Read when they are asked for."""

    def held(self, offsets: int, reread: bool) -> AbstractContextManager[Self]:
        """These rows while they are in use.

        Args:
            offsets: how many the batch covers.
            reread: the rows are read more than once, and Kafka only once.
        """

    def within(self, spans: Mapping[Partition, range], offsets: int) -> Self:
        """The rows made of the records whose `offset` lies in their partition's span, and of no partition without one.

        Args:
            spans: of offsets.
            offsets: how many offsets these are.
        """

    def only(self, records: Sequence[tuple[str, int, int]]) -> Self:
        """The rows made of these records: topic, partition and `offset` of each."""

    def bytes(self) -> int:
        """Of all lines of records. The rows of a reduction are few, and not among them."""

    def reduced_places(self) -> pa.Table:
        """The columns topic, partition, offset and at_ms of each record that a query reduces, and `reads`: its topic."""

    def to_arrow(self) -> pa.Table:
        """All rows, on the driver."""


@dataclass(frozen=True)
class Reach:
    """The offsets [start, end) that a partition's log holds, whether committed or not."""

    start: int
    end: int


@dataclass(frozen=True)
class KafkaRecord:
    """One record as Kafka holds it. `timestamp` in milliseconds since 1970; `headers`: their names."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: frozenset[str] = frozenset()

    def fingerprint(self) -> int:
        """CRC-32 of key, value and the timestamp's decimal digits: the same as `read.FINGERPRINT` in Spark."""
        return zlib.crc32((self.key or b"") + (self.value or b"") + str(self.timestamp).encode())


class Records(Protocol):
    """Single records. Raises Retriable, with the reason, when Kafka does not answer."""

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        """The first record at `offset` or later; None when there is none."""


class TopicInfo(Records, Protocol):
    """What is asked of Kafka about topics. Every method raises Retriable, with the reason, when Kafka does not answer."""

    def ids(self, topics: list[str]) -> dict[str, str]:
        """The ids of `topics`. Kafka gives a topic that is made anew under an old name another one."""

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        """How far every partition of `topics` reaches."""

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        """The fingerprint of the record at exactly `last.offset`; None when there is no record there."""

    def is_compacted(self, topic: str) -> bool:
        """May Kafka remove single records of the topic, because a later one has the same key?"""


class Scheduler(Protocol):
    """Runs what goes on side by side, and makes one wait for another."""

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Begin with `run`, beside the caller."""

    def wait(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds. Whoever makes it hold calls `changed`."""

    def changed(self) -> None:
        """Say that a condition may hold now for which somebody waits."""
