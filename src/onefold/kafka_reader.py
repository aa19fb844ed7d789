"""The reader of a range of each partition, for every service and command.

The module imports Kafka's client only on the first read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

#: (topic, partition)
Partition = tuple[str, int]

# A small batch of messages fits into the caches of a core, which saves CPU time.
_BATCH = 500
_POLL_S = 0.2


def consumer(client: Mapping[str, Any], **more: Any) -> Consumer:
    """Make a consumer of committed records for `messages`, which reports the ends of partitions without a wait."""
    from onefold import kafka_client

    return kafka_client.consumer({**client, "enable.partition.eof": True, "fetch.wait.max.ms": 10, **more})


def within(seconds: float) -> Callable[[], float]:
    """Return a function that returns the seconds left until a deadline, and raises `TimeoutError` after the deadline."""
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
    """Read partitions, each in order, up to the given end or up to the partition's present end.

    Args:
        consumer: A consumer from `consumer`.
        positions: The first offset of each partition, possibly `OFFSET_BEGINNING`. `messages` advances each position past the
            read records and markers.
        ends: The end of each partition. `messages` removes a finished partition. The caller may remove a partition earlier.
        left_s: Return the time-out of the next call, or raise after the deadline.
        failed: Called with the error of a partition, after its removal. If None, the error is raised.
        held: Whether to wait at the partition's present end for the given end, because an open transaction may block reads.

    Raises:
        KafkaException: Kafka reports an error of a partition, and `failed` is None.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    places = [TopicPartition(*place, start) for place, start in positions.items()]
    consumer.assign(places)
    consumer.resume(places)  # an earlier call may have paused them
    # A restore reads a single partition. A query of each message's partition would cost much CPU time.
    only = next(iter(ends)) if len(places) == 1 else None
    while ends:
        # librdkafka's consume waits for the full number of messages or the time-out, so only the first message is waited for.
        found = consumer.consume(1, min(_POLL_S, left_s()))
        found += consumer.consume(_BATCH, 0) if found else []
        # Records fetched before the assignment can only come first.
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
