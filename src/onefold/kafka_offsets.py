"""The offsets at which partitions begin and end.

Every function raises `KafkaException` if Kafka does not answer for each of the partitions.
"""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

#: (topic, partition)
Partition = tuple[str, int]

_SPEC: Any = OffsetSpec  # its methods have no annotations


def partitions(admin: AdminClient, topics: Iterable[str], timeout_s: float) -> list[Partition]:
    """List the partitions of those topics that exist."""
    found = admin.list_topics(timeout=timeout_s).topics
    return [(topic, partition) for topic in topics if topic in found for partition in found[topic].partitions]


def starts(admin: AdminClient, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """Ask for the first offset that each partition still holds."""
    return _offsets(admin, places, _SPEC.earliest(), timeout_s)


def stable_ends(admin: AdminClient, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """Ask for the last stable offsets, which end what a reader of committed records can read."""
    return _offsets(admin, places, _SPEC.latest(), timeout_s, IsolationLevel.READ_COMMITTED)


def high_watermarks(admin: AdminClient, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """Ask for the ends of the partitions, open transactions included."""
    return _offsets(admin, places, _SPEC.latest(), timeout_s)


def since(admin: AdminClient, places: Iterable[Partition], at_ms: int, timeout_s: float) -> dict[Partition, int]:
    """Ask for the first offsets with that timestamp or a later one, in milliseconds since 1970; -1 where no record has one."""
    return _offsets(admin, places, _SPEC.for_timestamp(at_ms), timeout_s, IsolationLevel.READ_COMMITTED)


def bounds(consumer: Consumer, place: Partition, timeout_s: float) -> tuple[int, int]:
    """Ask for start and end of a partition over a consumer that is there already; the end is that of its isolation level."""
    found: tuple[int, int] | None = consumer.get_watermark_offsets(TopicPartition(*place), timeout=timeout_s)
    if found is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return found


def _offsets(
    admin: AdminClient,
    places: Iterable[Partition],
    spec: OffsetSpec,
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Partition, int]:
    asked = {TopicPartition(*place): spec for place in places}
    answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=timeout_s) if asked else {}
    found = {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
    # If the leader of a partition changes meanwhile, librdkafka may return neither an error nor an offset.
    if OFFSET_INVALID in found.values():
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    return found
