"""Read committed records for commands: a range, one record, a range backwards, or the last record of a key.

Kafka's client is imported only for a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from onefold import kafka_reader

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from onefold.kafka_client import Trouble

# The default limits of a backwards search.
RECORDS_MAX = 10_000
BYTES_MAX = 8_000_000
# The first piece of a search, and the growth of the next pieces: the record may be the previous one, or far away.
RECORDS_FIRST, RECORDS_GROW = 64, 4
# The largest piece.
_PIECE_MAX = 50_000
# The fetch size for each partition. A broker sends up to this size in advance, and a larger record also arrives.
_FETCH_BYTES = 262_144
_POLL_RECORDS = 1_000
# For the first metadata request; else librdkafka repeats its request for a partition after half a second.
_ACQUAINT_S = 1.0
# One request; a healthy broker answers in milliseconds.
_CALL_S = 5.0
# The maxima of Kafka's protocol: a partition has 32 bits with a sign, an offset 64.
_PARTITION_MAX, _OFFSET_MAX = 2**31 - 1, 2**63 - 1
_DIGITS_MAX = len(str(_OFFSET_MAX))
# Characters of an invalid place in a message.
_CUT = 300


class Silent(Exception):
    """Kafka did not answer in time, or refused. The message is one sentence.

    Attributes:
        trouble: the cause, if Kafka refuses the connection or the request.
    """

    def __init__(self, message: str, trouble: Trouble | None = None) -> None:
        super().__init__(message)
        self.trouble = trouble


class NoPlace(ValueError):
    """The text is no place of a record. The message is one sentence."""


class RecordPlace(NamedTuple):
    """The place of a record in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @staticmethod
    def parse(text: str) -> RecordPlace:
        """Parse a text `topic/partition/offset`. Raises `NoPlace` for any other text."""
        topic, *numbers = text.split("/")
        if not topic or len(numbers) != 2 or not all(digits.isascii() and digits.isdigit() for digits in numbers):
            raise NoPlace(f"{_cut(text)!r} is no place")
        # The length comes first: Python refuses to parse very long numbers.
        if any(len(digits) > _DIGITS_MAX for digits in numbers):
            raise NoPlace(f"{_cut(text)!r} is no place: Kafka has no number of so many digits")
        partition, offset = map(int, numbers)
        if partition > _PARTITION_MAX:
            raise NoPlace(f"{text!r} is no place: Kafka numbers partitions up to {_PARTITION_MAX}")
        if offset > _OFFSET_MAX:
            raise NoPlace(f"{text!r} is no place: Kafka numbers offsets up to {_OFFSET_MAX}")
        return RecordPlace(topic, partition, offset)

    @staticmethod
    def found(text: str | None) -> RecordPlace | None:
        """Parse the place in a header of any producer; None if the text is no place."""
        try:
            return None if text is None else RecordPlace.parse(text)
        except NoPlace:
            return None


class Stored(NamedTuple):
    """A committed record, as bytes."""

    place: RecordPlace
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        size = len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size += len(name) + len(value or b"")
        return size


class PartitionBounds(NamedTuple):
    """The offsets [start, end) of a partition, up to the last stable offset."""

    start: int
    end: int


class SearchProgress(NamedTuple):
    """The range of a backwards search in a partition.

    Attributes:
        start: the smallest offset that was read.
        whole: whether the search reached the first offset of its range.
    """

    start: int
    whole: bool


def consumer(client: Mapping[str, Any], **more: Any) -> Consumer:
    """A consumer for `kafka_reader.messages` with small fetches."""
    small = {
        "auto.offset.reset": "earliest",  # skips records that retention removes meanwhile
        "fetch.min.bytes": 1,
        "max.partition.fetch.bytes": _FETCH_BYTES,
        "queued.max.messages.kbytes": 4_096,
        "fetch.queue.backoff.ms": 5,
    }
    return kafka_reader.consumer(client, **small, **more)


class LogReader:
    """Reads and counts committed records.

    Args:
        client: librdkafka settings.
        patience_s: for all calls together; after this time each call raises `Silent`.

    Attributes:
        records, bytes: the totals of all records returned so far.
    """

    def __init__(self, client: Mapping[str, Any], patience_s: float) -> None:
        self._client = dict(client)
        self._until = time.monotonic() + patience_s
        self._patience_s = patience_s
        self._consumer: Consumer | None = None
        self._partitions: dict[str, int] = {}
        self._cluster_id = ""
        self._bounds: dict[tuple[str, int], PartitionBounds] = {}
        self.records = 0
        self.bytes = 0

    def partitions(self, topic: str) -> int:
        """The number of partitions; 0 for a missing topic. Requested once. Raises `Silent`."""
        self._ask_once()
        if topic not in self._partitions:
            self._partitions[topic] = 0
            self._refuse_hidden(topic)
        return self._partitions[topic]

    def _ask_once(self) -> None:
        if self._partitions:
            return
        with self._said() as reader:
            # All topics, because a broker may create a topic that is requested by name.
            found = reader.list_topics(timeout=self._left_s())
            self._cluster_id = str(found.cluster_id or "")
            self._partitions = {name: len(one.partitions) for name, one in found.topics.items() if one.error is None}

    def _refuse_hidden(self, topic: str) -> None:
        """Raises `Silent` for a topic that the list lacks because the client may not describe it."""
        from onefold import kafka_client

        with self._said():
            client = kafka_client.admin(self._client)
            if kafka_client.undescribable(client, [topic], self._left_s()):
                trouble = kafka_client.cannot_describe(client, [topic])
                raise Silent(trouble.sentence, trouble)

    def begin_again(self) -> None:
        """Restart the time limit now."""
        self._until = time.monotonic() + self._patience_s

    def bounds(self, topic: str, partition: int, again: bool = False) -> PartitionBounds:
        """The offsets of a partition, requested once unless `again`. Raises `Silent`."""
        from onefold import kafka_offsets

        place = topic, partition
        if again or place not in self._bounds:
            with self._said() as reader:
                self._bounds[place] = PartitionBounds(*kafka_offsets.bounds(reader, place, self._left_s()))
        return self._bounds[place]

    def offset_at(self, topic: str, partition: int, at_ms: int) -> int | None:
        """The offset of the first record with this time or a later one; None if there is none. Raises `Silent`."""
        from onefold import kafka_offsets

        with self._said() as reader:
            (found,) = kafka_offsets.first_since(reader, [(topic, partition)], at_ms, self._left_s()).values()
            return found if found >= 0 else None

    def at(self, place: RecordPlace) -> Stored | str:
        """The record at a place, or a sentence: why there is none (any more). Raises `Silent`."""
        topic, partition, offset = place
        if self.partitions(topic) <= partition:
            return f"Kafka has no {topic}/{partition}"
        bounds = self.bounds(topic, partition)
        if offset < bounds.start:
            return (
                f"{topic}/{partition} begins at offset {bounds.start} now: retention has removed what was at {offset}"
            )
        if offset >= bounds.end:
            return f"{topic}/{partition} ends at offset {bounds.end}, before {offset}: it is not the topic that it was"
        found = next(iter(self.read(topic, partition, offset, offset + 1)), None)
        return found or f"no committed record lies at {place}"

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Stored]:
        """Read the committed records of [start, end), in order. `start` must not be below the first offset of the partition.
        Raises `Silent`.
        """
        place = topic, partition
        with self._said() as reader:
            for _, message in (
                kafka_reader.messages(reader, {place: start}, {place: end}, self._left_s) if start < end else ()
            ):
                stored = _stored(message)
                self.records += 1
                self.bytes += stored.size
                yield stored

    def backwards(
        self,
        topic: str,
        partition: int,
        bounds: PartitionBounds,
        take: Callable[[list[Stored]], bool],
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> SearchProgress:
        """Pass the records before `bounds.end` to `take`, in growing pieces, newest piece first, each piece in order.

        Args:
            bounds: the search range, not below the first offset of the partition.
            take: returns whether the search can end.
            records_max, bytes_max: the limits of the search.

        Raises:
            Silent: Kafka does not answer.
        """
        piece, end, read, before = RECORDS_FIRST, bounds.end, 0, self.bytes
        while end > bounds.start:
            piece = min(piece, records_max - read)
            start = max(bounds.start, end - piece)
            found = list(self.read(topic, partition, start, end))
            read += end - start
            size = self.bytes - before
            end = start
            enough = take(found)
            if enough or read >= records_max or size >= bytes_max:
                break
            # Limit the next piece to the remaining bytes, by the average record size so far.
            piece = min(piece * RECORDS_GROW, _PIECE_MAX)
            if found:
                piece = max(1, min(piece, (bytes_max - size) * len(found) // max(1, size)))
        return SearchProgress(end, end <= bounds.start)

    def last(
        self, topic: str, partition: int, bounds: PartitionBounds, key: bytes, read: Callable[[], None] = lambda: None
    ) -> Stored | None:
        """Find the last record of a key before `bounds.end`, backwards in growing pieces. Memory holds only the found record
        and the client's fetch buffers, for any number and size of records.

        Args:
            bounds: the search range, not below the first offset of the partition.
            read: called regularly during the search.

        Raises:
            Silent: Kafka does not answer.
        """
        piece, end, found = RECORDS_FIRST, bounds.end, None
        while found is None and end > bounds.start:
            start = max(bounds.start, end - piece)
            for number, record in enumerate(self.read(topic, partition, start, end)):
                if record.key == key:
                    found = record
                if number % _POLL_RECORDS == 0:
                    read()
            piece, end = min(piece * RECORDS_GROW, _PIECE_MAX), start
        return found

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        """The present topic ids by name. Raises `Silent`."""
        from onefold.processor.core.errors import ProcessorError
        from onefold.processor.io import admin

        try:
            asking = admin.connect(self._client)  # must stay referenced until the response
            return admin.ask_topic_ids(asking, topics)()
        except ProcessorError as error:
            raise Silent(f"Kafka does not answer: {error}") from None

    def cluster_id(self) -> str:
        """Kafka's own id of the cluster. Requested once. Raises `Silent`."""
        self._ask_once()
        return self._cluster_id

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @contextmanager
    def _said(self) -> Iterator[Consumer]:
        """Give the consumer, and convert its errors to `Silent`."""
        from confluent_kafka import KafkaException

        from onefold import kafka_client

        self._left_s()
        try:
            yield self._open()
        except KafkaException as error:
            cause = error.args[0]
            if (found := kafka_client.explain(cause, self._client)) is None and cause.code() in kafka_client.FORBIDDEN:
                found = kafka_client.forbidden(cause, self._client)
            raise Silent(found.sentence if found else f"Kafka does not answer: {cause.str()}", found) from None

    def _open(self) -> Consumer:
        from confluent_kafka import KafkaException

        if self._consumer is None:
            self._consumer = consumer(self._client)
            with suppress(KafkaException):
                # The first answer gives the cluster's metadata; the second uses the permanent connection.
                for _ in range(2):
                    self._consumer.list_topics(timeout=min(_ACQUAINT_S, self._left_s()))
        return self._consumer

    def _left_s(self) -> float:
        """The time limit of the next call: the remaining time, at most the limit of one call."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._late()
        return min(left, _CALL_S)

    def _late(self) -> Silent:
        return Silent(f"Kafka has not answered within {self._patience_s:.0f} s")


def _cut(text: str) -> str:
    return text if len(text) <= _CUT else f"{text[:_CUT]}…"


def _stored(message: Message) -> Stored:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record is of a topic"
    assert partition is not None, "a record is of a partition"
    assert offset is not None, "a record lies at an offset"
    headers: Any = message.headers() or ()
    return Stored(
        RecordPlace(topic, partition, offset), message.timestamp()[1], message.key(), message.value(), tuple(headers)
    )
