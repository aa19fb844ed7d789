"""The reader of every command that asks for records: a range, a record at an offset, backwards, or the last one of a key.

Kafka's client is imported when Kafka is asked.
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

# What is read backwards at most before it is said that there may be more: 10,000 records are a tenth of a second of a core.
RECORDS_MAX = 10_000
BYTES_MAX = 8_000_000
# Read first; then as much again and again: what is looked for may be the record before, or far away.
RECORDS_FIRST, RECORDS_GROW = 64, 4
# At once, of however many.
_PIECE_MAX = 50_000
# Of a partition at once. A broker sends so much ahead of what is asked for; a record that is larger comes all the same.
_FETCH_BYTES = 262_144
_POLL_RECORDS = 1_000
# The first sight of the cluster; without it librdkafka asks for a partition again half a second later.
_ACQUAINT_S = 1.0
# One question; a broker that is there answers in milliseconds.
_CALL_S = 5.0
# The largest of Kafka's protocol: a partition has 32 bits with a sign, an offset 64.
_PARTITION_MAX, _OFFSET_MAX = 2**31 - 1, 2**63 - 1
_DIGITS_MAX = len(str(_OFFSET_MAX))
# Of a text that is no place; it may be anything.
_CUT = 300


class Silent(Exception):
    """Kafka did not answer in time, or answered that it cannot. The message is one sentence.

    Attributes:
        trouble: why Kafka lets nobody in, where that is it.
    """

    def __init__(self, message: str, trouble: Trouble | None = None) -> None:
        super().__init__(message)
        self.trouble = trouble


class NoPlace(ValueError):
    """A text names no place of a record. The message is one sentence."""


class Place(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @staticmethod
    def parse(text: str) -> Place:
        """The place that a text names, `topic/partition/offset`. Raises `NoPlace` for anything else."""
        topic, *numbers = text.split("/")
        if not topic or len(numbers) != 2 or not all(digits.isascii() and digits.isdigit() for digits in numbers):
            raise NoPlace(f"{_cut(text)!r} is no place")
        # By their length first: Python refuses to read very long ones.
        if any(len(digits) > _DIGITS_MAX for digits in numbers):
            raise NoPlace(f"{_cut(text)!r} is no place: Kafka has no number of so many digits")
        partition, offset = map(int, numbers)
        if partition > _PARTITION_MAX:
            raise NoPlace(f"{text!r} is no place: Kafka numbers partitions up to {_PARTITION_MAX}")
        if offset > _OFFSET_MAX:
            raise NoPlace(f"{text!r} is no place: Kafka numbers offsets up to {_OFFSET_MAX}")
        return Place(topic, partition, offset)

    @staticmethod
    def found(text: str | None) -> Place | None:
        """The place that a header of a stranger's record names, if it names one."""
        try:
            return None if text is None else Place.parse(text)
        except NoPlace:
            return None


class Stored(NamedTuple):
    """A committed record, as bytes."""

    place: Place
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


class Bounds(NamedTuple):
    """What a partition holds: offsets [start, end), up to the last stable offset."""

    start: int
    end: int


class Looked(NamedTuple):
    """How far back somebody has looked in a partition.

    Attributes:
        start: the least offset that was read.
        whole: whether nothing older is there.
    """

    start: int
    whole: bool


def consumer(client: Mapping[str, Any], **more: Any) -> Consumer:
    """A consumer for `kafka_reader.messages` that fetches little at once."""
    small = {
        "auto.offset.reset": "earliest",  # records that retention removes meanwhile are passed over
        "fetch.min.bytes": 1,
        "max.partition.fetch.bytes": _FETCH_BYTES,
        "queued.max.messages.kbytes": 4_096,
        "fetch.queue.backoff.ms": 5,
    }
    return kafka_reader.consumer(client, **small, **more)


class LogReader:
    """Reads committed records. What it gives, it counts.

    Args:
        client: librdkafka settings.
        patience_s: for everything together; after that each call raises `Silent`.

    Attributes:
        records, bytes: given so far, whoever wanted them.
    """

    def __init__(self, client: Mapping[str, Any], patience_s: float) -> None:
        self._client = dict(client)
        self._until = time.monotonic() + patience_s
        self._patience_s = patience_s
        self._consumer: Consumer | None = None
        self._partitions: dict[str, int] = {}
        self._cluster_id = ""
        self._bounds: dict[tuple[str, int], Bounds] = {}
        self.records = 0
        self.bytes = 0

    def partitions(self, topic: str) -> int:
        """How many the topic has; 0 when there is no such topic. Asked once. Raises `Silent`."""
        self._ask_once()
        if topic not in self._partitions:
            self._partitions[topic] = 0
            self._refuse_hidden(topic)
        return self._partitions[topic]

    def _ask_once(self) -> None:
        if self._partitions:
            return
        with self._said() as reader:
            # Not of the topic by its name: a broker may make one that it is asked for.
            found = reader.list_topics(timeout=self._left_s())
            self._cluster_id = str(found.cluster_id or "")
            self._partitions = {name: len(one.partitions) for name, one in found.topics.items() if one.error is None}

    def _refuse_hidden(self, topic: str) -> None:
        """A list of all topics leaves those out that one may not describe."""
        from onefold import kafka_client

        with self._said():
            client = kafka_client.admin(self._client)
            if kafka_client.undescribable(client, [topic], self._left_s()):
                trouble = kafka_client.cannot_describe(client, [topic])
                raise Silent(trouble.sentence, trouble)

    def begin_again(self) -> None:
        """Let the patience count from now on."""
        self._until = time.monotonic() + self._patience_s

    def bounds(self, topic: str, partition: int, again: bool = False) -> Bounds:
        """What it holds, asked once unless `again`. Raises `Silent`."""
        from onefold import kafka_offsets

        place = topic, partition
        if again or place not in self._bounds:
            with self._said() as reader:
                self._bounds[place] = Bounds(*kafka_offsets.bounds(reader, place, self._left_s()))
        return self._bounds[place]

    def offset_at(self, topic: str, partition: int, at_ms: int) -> int | None:
        """Of the first record that is not older; None when all are. Raises `Silent`."""
        from onefold import kafka_offsets

        with self._said() as reader:
            (found,) = kafka_offsets.first_since(reader, [(topic, partition)], at_ms, self._left_s()).values()
            return found if found >= 0 else None

    def at(self, place: Place) -> Stored | str:
        """The record there; or the sentence that says why there is none (any more). Raises `Silent`."""
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
        """The committed records of [start, end), in order. `start` is not below what the partition holds. Raises `Silent`."""
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
        bounds: Bounds,
        take: Callable[[list[Stored]], bool],
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> Looked:
        """Hand over the records before `bounds.end`, in pieces that grow, the newest first; each piece is in order.

        Args:
            bounds: what to look through: not below what the partition holds.
            take: whether that was enough.
            records_max, bytes_max: where to stop.

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
            # Never more at once than what is left by the size that records have here.
            piece = min(piece * RECORDS_GROW, _PIECE_MAX)
            if found:
                piece = max(1, min(piece, (bytes_max - size) * len(found) // max(1, size)))
        return Looked(end, end <= bounds.start)

    def last(
        self, topic: str, partition: int, bounds: Bounds, key: bytes, read: Callable[[], None] = lambda: None
    ) -> Stored | None:
        """The last record of a key before `bounds.end`, looked for backwards in pieces that grow. Of all that is read only that
        one is held, whatever its size and however many there are: beside it, what the client has fetched.

        Args:
            bounds: what to look through: not below what the partition holds.
            read: called now and then, while records are read.

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
        """Which topics the names stand for now. Raises `Silent`."""
        from onefold.processor.core.errors import ProcessorError
        from onefold.processor.io import admin

        try:
            asking = admin.connect(self._client)  # it has to live until the answer is here
            return admin.ask_topic_ids(asking, topics)()
        except ProcessorError as error:
            raise Silent(f"Kafka does not answer: {error}") from None

    def cluster_id(self) -> str:
        """Kafka's own id of the cluster. Asked once. Raises `Silent`."""
        self._ask_once()
        return self._cluster_id

    def close(self) -> None:
        """Leave."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @contextmanager
    def _said(self) -> Iterator[Consumer]:
        """The consumer; what it raises becomes a sentence."""
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
                # By the first answer it knows the cluster; the second comes over the connection that stays.
                for _ in range(2):
                    self._consumer.list_topics(timeout=min(_ACQUAINT_S, self._left_s()))
        return self._consumer

    def _left_s(self) -> float:
        """For the next call: what is left of all the time, and never more than one call may take."""
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
        Place(topic, partition, offset), message.timestamp()[1], message.key(), message.value(), tuple(headers)
    )
