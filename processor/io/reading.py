"""Reading committed records outside of a task: from one offset up to another, or a few by their places."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.processor.io.kafka_errors import translate

#: (topic, partition, offset)
Place = tuple[str, int, int]

# Nothing came for so long: the broker is away, or an open transaction hides the rest.
STALL_S = 15.0
_BATCH = 2_000
# What lies so close behind the record that was read last has been fetched with it; to jump costs a fetch of its own.
_NEAR = 1_000


def consumer(client: Mapping[str, str]) -> Consumer:
    """A consumer of committed records at places that it is given; it is in no group."""
    return kafka_client.consumer(
        {
            **client,
            # Required by the client and never used.
            "group.id": "onefold-reads",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
        }
    )


def between(client: Mapping[str, str], ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[Message]:
    """The committed records of [start, end) of each partition, in the order of their offsets within one.

    Raises:
        Retriable: the end cannot be reached: the broker is away, or a transaction is open before it.
        ProcessorError: Kafka refuses.
    """
    left = {place: end for place, (start, end) in ranges.items() if start < end}
    with closing(consumer(client)) as reader:
        reader.assign([TopicPartition(*place, ranges[place][0]) for place in left])
        heard = time.monotonic()
        while left:
            for message in reader.consume(_BATCH, 0.2):
                place, offset, error = (message.topic() or "", message.partition()), message.offset(), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN:
                        continue
                    raise translate(error, f"reading {place[0]}")
                heard = time.monotonic()
                if place not in left or offset is None:
                    continue
                if error is None and offset < left[place]:
                    yield message
                if (offset if error is not None else offset + 1) >= left[place]:
                    del left[place]
                    reader.pause([TopicPartition(*place)])
            if time.monotonic() - heard > STALL_S:
                topic, partition = min(left)
                raise Retriable(
                    Code.TOPIC_UNREADABLE, f"{topic}/{partition} cannot be read up to offset {left[topic, partition]}"
                )


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
        if error is not None and not error.retriable():
            raise translate(error, f"reading {topic}")
    raise Retriable(Code.TOPIC_UNREADABLE, f"{topic}/{partition} cannot be read at offset {at}")
