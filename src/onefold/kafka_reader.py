"""The reader of a range of each partition, for every service and command.

Kafka's client is imported when Kafka is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

#: (topic, partition)
Partition = tuple[str, int]

# Messages that are made and used within the caches of a core cost a quarter less than 10,000 at once.
_BATCH = 500
_POLL_S = 0.2


def consumer(client: Mapping[str, Any], **more: Any) -> Consumer:
    """Make a consumer for `messages`, of committed records: it reports the ends of partitions, and does not wait there."""
    from onefold import kafka_client

    return kafka_client.consumer({**client, "enable.partition.eof": True, "fetch.wait.max.ms": 10, **more})


def within(seconds: float) -> Callable[[], float]:
    """Return a function that gives the seconds that are left of these, and raises `TimeoutError` later."""
    deadline = time.monotonic() + seconds

    def left_s() -> float:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    return left_s


def messages(
    consumer: Consumer,
    positions: dict[Partition, int],
    ends: dict[Partition, int],
    left_s: Callable[[], float],
    failed: Callable[[Partition, KafkaError], None] | None = None,
    *,
    held: bool = False,
) -> Iterator[tuple[Partition, Message]]:
    """Read partitions, each in order, up to their ends, or to where a partition ends now.

    Args:
        consumer: as `consumer` makes it.
        positions: where each partition begins, which may be `OFFSET_BEGINNING`. `messages` moves each position behind the records
            and markers that it has read.
        ends: `messages` removes a partition when nothing more of it is to come. The caller may remove one earlier.
        left_s: the time-out of the next call; it raises when the time is over.
        failed: called with the error of a partition, which is removed then. None: the error is raised.
        held: a partition ends at its end only: an open transaction may hold the rest.

    Raises:
        KafkaException: Kafka refuses, without `failed`.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    places = [TopicPartition(*place, start) for place, start in positions.items()]
    consumer.assign(places)
    consumer.resume(places)  # an earlier call may have paused them
    # To ask each message for its partition costs as much as all else here: a restore reads one partition.
    only = next(iter(ends)) if len(places) == 1 else None
    while ends:
        # librdkafka's consume waits until it has all that it may return, or the time is over: so for the first one only.
        found = consumer.consume(1, min(_POLL_S, left_s()))
        found += consumer.consume(_BATCH, 0) if found else []
        # Records that were fetched before the assignment come first, if at all.
        one = only if found and _partition_of(found[0]) == only else None
        for message in found:
            place, offset, error = one or _partition_of(message), message.offset(), message.error()
            if place not in ends or (error is None and (offset or 0) < positions[place]):
                continue
            if error is None and offset is not None and offset < ends[place]:
                positions[place] = offset + 1
                yield place, message
            elif error is None or error.code() == KafkaError._PARTITION_EOF:
                positions[place] = max(positions[place], offset or 0)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                del ends[place]
                if failed is None:
                    raise KafkaException(error)
                failed(place, error)
            elif place in ends and (positions[place] >= ends[place] or (error is not None and not held)):
                del ends[place]
            if ends and place not in ends:
                consumer.pause([TopicPartition(*place)])


def _partition_of(message: Message) -> Partition:
    return message.topic() or "", message.partition() or 0
