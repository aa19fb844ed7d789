"""Read committed records outside of a task: a range of offsets, or a few records by their places."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby, pairwise

from confluent_kafka import Consumer, KafkaError, Message

from onefold.error_codes import Code
from onefold.kafka_reader import Partition, consumer, messages
from onefold.processor.core.errors import Refused, Retriable
from onefold.processor.io.kafka_errors import again_or_never, translate

#: (topic, partition, offset)
Place = tuple[str, int, int]

# After this time without a record, the broker is unreachable, or an open transaction blocks the rest.
STALL_S = 15.0
# A record this close behind the last one was probably fetched with it. A jump would cost a further fetch.
_NEAR = 1_000


def between(client: Mapping[str, str], ranges: Mapping[Partition, tuple[int, int]]) -> Iterator[Message]:
    """Read ranges with a new consumer (see `read`)."""
    with closing(consumer(client)) as reader:
        yield from read(reader, ranges)


def read(reader: Consumer, ranges: Mapping[Partition, tuple[int, int]], stall_s: float = STALL_S) -> Iterator[Message]:
    """Yield the committed records in [start, end) of each partition. Within a partition, the records are in offset order.

    Args:
        reader: a consumer of committed records that reports the ends of partitions.
        ranges: a start may be `OFFSET_BEGINNING`.
        stall_s: the longest time without progress.

    Raises:
        Retriable: the end is unreachable: the broker does not respond, or a transaction is open before the end.
        Refused: the start was deleted, or a right is missing.
    """

    def failed(place: Partition, error: KafkaError) -> None:
        raise _deleted("reading", place, error) or again_or_never(error, f"{place[0]} cannot be read")

    return _read(reader, ranges, failed, stall_s, held=True)


def _read(
    reader: Consumer,
    ranges: Mapping[Partition, tuple[int, int]],
    failed: Callable[[Partition, KafkaError], None],
    stall_s: float = STALL_S,
    *,
    held: bool = False,
) -> Iterator[Message]:
    ends = {place: end for place, (start, end) in ranges.items() if max(0, start) < end}
    positions = {place: ranges[place][0] for place in ends}
    before, deadline = dict(positions), time.monotonic() + stall_s

    def left_s() -> float:
        nonlocal before, deadline
        if before != positions:
            before, deadline = dict(positions), time.monotonic() + stall_s
        elif time.monotonic() > deadline:
            topic, partition = place = min(ends)
            raise Retriable(
                Code.TOPIC_UNREADABLE,
                f"{topic}/{partition} stays at offset {max(0, positions[place])} of {ends[place]}: a transaction is open there "
                f"(kafka-transactions.sh find-hanging names it), or the log is shorter than it was",
            )
        return stall_s

    for _, message in messages(reader, positions, ends, left_s, failed, held=held):
        yield message


def position_after(message: Message, doing: str) -> int:
    """Return the offset to read after this message. An end-of-partition event also skips the markers before the end."""
    error, offset = message.error(), message.offset()
    if error is None and offset is not None:
        return offset + 1
    assert error is not None, "a record lies at an offset"
    if error.code() == KafkaError._PARTITION_EOF and offset is not None:
        return offset
    place = message.topic() or "", message.partition() or 0
    raise _deleted(doing, place, error) or translate(error, f"{doing} {place[0]}")


def _deleted(doing: str, place: Partition, error: KafkaError) -> Refused | None:
    if error.code() != KafkaError._AUTO_OFFSET_RESET:
        return None
    return Refused(
        Code.RECORDS_DELETED, f"{doing}: {place[0]}/{place[1]} no longer holds the next offset: {error.str()}"
    )


def fetch(client: Mapping[str, str], places: Iterable[Place]) -> dict[Place, Message]:
    """Return the records at these places, without places that no longer have a committed record.

    Raises:
        Retriable: the broker does not respond.
        ProcessorError: Kafka refuses the request.
    """
    wanted, found, deleted = set(places), dict[Place, Message](), False

    def failed(place: Partition, error: KafkaError) -> None:
        nonlocal deleted
        deleted = error.code() == KafkaError._AUTO_OFFSET_RESET
        if not deleted:
            raise again_or_never(error, f"{place[0]} cannot be read")

    with closing(consumer(client)) as reader:
        for partition, group in groupby(sorted(wanted), key=lambda place: place[:2]):
            left = [offset for *_, offset in group]
            while left:
                end = next((one + 1 for one, after in pairwise(left) if after - one > _NEAR), left[-1] + 1)
                deleted = False
                for message in _read(reader, {partition: (left[0], end)}, failed):
                    if (place := (*partition, message.offset() or 0)) in wanted:
                        found[place] = message
                # If the start of a range was deleted, the rest may still exist.
                left = [offset for offset in left[1:] if deleted or offset >= end]
    return found
