"""Reading committed records outside of a task: from one offset up to another, or a few by their places."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Retriable
from onefold.processor.io.kafka_errors import again_or_never, translate

#: (topic, partition, offset)
Place = tuple[str, int, int]

# Nothing came for so long: the broker is away, or an open transaction hides the rest.
STALL_S = 15.0
# Messages that are made and used within the caches of a core cost a quarter less than 10,000 at once.
_BATCH = 500
# What lies so close behind the record that was read last has been fetched with it; to jump costs a fetch of its own.
_NEAR = 1_000


def consumer(client: Mapping[str, str]) -> Consumer:
    """A consumer of committed records at places that it is given; it is in no group."""
    return kafka_client.consumer({**client, "enable.partition.eof": True, "fetch.wait.max.ms": 10})


def between(client: Mapping[str, str], ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[Message]:
    """`read`, with a consumer of its own."""
    with closing(consumer(client)) as reader:
        yield from read(reader, ranges)


def read(
    reader: Consumer, ranges: Mapping[tuple[str, int], tuple[int, int]], stall_s: float = STALL_S
) -> Iterator[Message]:
    """The committed records of [start, end) of each partition, in the order of their offsets within one.

    Args:
        reader: a consumer of committed records that reports the ends of partitions.
        ranges: a start may be `OFFSET_BEGINNING`.
        stall_s: how long the reading may stay where it is.

    Raises:
        Retriable: the end cannot be reached: the broker is away, or a transaction is open before it.
        Refused: the start was deleted, or a right is missing.
    """
    left = {place: end for place, (start, end) in ranges.items() if max(0, start) < end}
    # To ask each message for its partition costs as much as all else here: a restore reads one partition.
    only = next(iter(left)) if len(left) == 1 else None
    reached = {place: max(0, ranges[place][0]) for place in left}
    reader.assign([TopicPartition(*place, ranges[place][0]) for place in left])
    deadline = time.monotonic() + stall_s
    while left:
        moved = False
        # librdkafka's consume waits until it has all that it may return, or the time is over
        for message in (*reader.consume(1, 0.05), *reader.consume(_BATCH, 0)):
            place, error = only or (message.topic() or "", message.partition() or 0), message.error()
            if error is not None and error.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                raise again_or_never(error, f"{place[0]} cannot be read")
            at = position_after(message, "reading")
            if place not in left or at <= reached[place]:
                continue
            moved, reached[place] = True, at
            if error is None and at <= left[place]:
                yield message
            if at >= left[place]:
                del left[place]
                reader.pause([TopicPartition(*place)])
        if moved:
            deadline = time.monotonic() + stall_s
        elif time.monotonic() > deadline:
            topic, partition = place = min(left)
            raise Retriable(
                Code.TOPIC_UNREADABLE,
                f"{topic}/{partition} stays at offset {reached[place]} of {left[place]}: a transaction is open there "
                f"(kafka-transactions.sh find-hanging names it), or the log is shorter than it was",
            )


def position_after(message: Message, doing: str) -> int:
    """The offset to read after this message; an end-of-partition event also counts the markers before it."""
    error, offset = message.error(), message.offset()
    if error is None and offset is not None:
        return offset + 1
    assert error is not None, "a record lies at an offset"
    if error.code() == KafkaError._PARTITION_EOF and offset is not None:
        return offset
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise Refused(
            Code.RECORDS_DELETED,
            f"{doing}: {message.topic()}/{message.partition()} no longer holds the next offset: {error.str()}",
        )
    raise translate(error, f"{doing} {message.topic()}")


def fetch(client: Mapping[str, str], places: Iterable[Place]) -> dict[Place, Message]:
    """The records at these places; one where no committed record is any more is left out.

    Raises:
        Retriable: the broker does not answer.
        ProcessorError: Kafka refuses.
    """
    found: dict[Place, Message] = {}
    with closing(consumer(client)) as reader:
        for (topic, partition), group in groupby(sorted(set(places)), key=lambda place: place[:2]):
            at: int | None = None  # what is read next
            for place in group:
                offset = place[2]
                if at is None or not 0 <= offset - at <= _NEAR:
                    reader.assign([TopicPartition(topic, partition, offset)])
                    at = offset
                while at is not None and at <= offset:
                    at, message = _next(reader, topic, partition, at)
                    if message is not None and message.offset() == offset:
                        found[place] = message
    return found


def _next(reader: Consumer, topic: str, partition: int, at: int) -> tuple[int | None, Message | None]:
    """The offset after the next record, and that record; None where there is none, or none any more."""
    deadline = time.monotonic() + STALL_S
    while time.monotonic() < deadline:
        message = reader.poll(0.5)
        # What was fetched of the partition before may still be in the queue.
        if message is None or (message.topic(), message.partition()) != (topic, partition):
            continue
        error, offset = message.error(), message.offset()
        if error is None and offset is not None:
            return offset + 1, message
        if error is not None and error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
            return None, None
        if error is not None:
            raise again_or_never(error, f"{topic} cannot be read")
    raise Retriable(Code.TOPIC_UNREADABLE, f"{topic}/{partition} cannot be read at offset {at}")
