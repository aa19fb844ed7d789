"""The offsets at which partitions begin and end.

Every function raises `KafkaException` if Kafka does not answer for each of the partitions. While a partition has no leader, the
function retries until its time-out. While a partition is unknown, the function retries for a second.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

#: (topic, partition)
Partition = tuple[str, int]
T = TypeVar("T")

_SPEC: Any = OffsetSpec  # its methods have no annotations

# The errors of a request for offsets after which Kafka's own clients retry. The leader of the partition moves, or a broker has
# not yet become the leader of a new partition.
_NO_LEADER = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    # librdkafka's own, if none of the partitions in question has a leader: an admin client's and a consumer's.
    KafkaError._NOENT,
    KafkaError._UNKNOWN_PARTITION,
)
_ASK_AGAIN_S = 0.1  # as in Kafka's own clients, `retry.backoff.ms`
# A new topic becomes known to its leader within a second. A topic unknown for longer is deleted.
_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)
_UNKNOWN_S = 1.0


def partitions(admin: AdminClient, topics: Iterable[str], timeout_s: float) -> list[Partition]:
    """List the partitions of all existing topics among `topics`."""
    found = admin.list_topics(timeout=timeout_s).topics
    return [(topic, partition) for topic in topics if topic in found for partition in found[topic].partitions]


def starts(admin: AdminClient, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """Request the first retained offset of each partition."""
    return _offsets(admin, places, _SPEC.earliest(), timeout_s)


def stable_ends(admin: AdminClient, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """Request the last stable offset of each partition, the end for a reader of committed records."""
    return _offsets(admin, places, _SPEC.latest(), timeout_s, IsolationLevel.READ_COMMITTED)


def high_watermarks(admin: AdminClient, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """Request the end of each partition, including open transactions."""
    return _offsets(admin, places, _SPEC.latest(), timeout_s)


def since(admin: AdminClient, places: Iterable[Partition], at_ms: int, timeout_s: float) -> dict[Partition, int]:
    """Request the first offset with a timestamp at or after `at_ms`, in milliseconds since 1970; -1 without such a record."""
    return _offsets(admin, places, _SPEC.for_timestamp(at_ms), timeout_s, IsolationLevel.READ_COMMITTED)


def bounds(consumer: Consumer, place: Partition, timeout_s: float) -> tuple[int, int]:
    """Request the start and the end of a partition over an existing consumer, the end by the consumer's isolation level."""

    def question(left_s: float) -> tuple[int, int]:
        found: tuple[int, int] | None = consumer.get_watermark_offsets(TopicPartition(*place), timeout=left_s)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    return _until_led(question, timeout_s)


def first_since(consumer: Consumer, places: Iterable[Partition], at_ms: int, timeout_s: float) -> dict[Partition, int]:
    """Request the same offsets as `since`, over an existing consumer."""
    asked = [TopicPartition(*place, at_ms) for place in places]

    def question(left_s: float) -> dict[Partition, int]:
        found = consumer.offsets_for_times(asked, timeout=left_s)
        for at in found:
            if at.error is not None:
                raise KafkaException(at.error)
        return {(at.topic, at.partition): at.offset for at in found}

    return _until_led(question, timeout_s) if asked else {}


def _offsets(
    admin: AdminClient,
    places: Iterable[Partition],
    spec: OffsetSpec,
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Partition, int]:
    asked = {TopicPartition(*place): spec for place in places}

    def question(left_s: float) -> dict[Partition, int]:
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=left_s)
        try:
            found = {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
        except KafkaException as error:
            # librdkafka reports the same error for partitions that do not exist.
            if error.args[0].code() == KafkaError._NOENT and not _exist(admin, asked, left_s):
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)) from None
            raise
        # If the leader of a partition changes meanwhile, librdkafka may return neither an error nor an offset.
        if OFFSET_INVALID in found.values():
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return found

    return _until_led(question, timeout_s) if asked else {}


def _exist(admin: AdminClient, places: Iterable[TopicPartition], timeout_s: float) -> bool:
    topics = admin.list_topics(timeout=timeout_s).topics
    return all(place.topic in topics and place.partition in topics[place.topic].partitions for place in places)


def _until_led(question: Callable[[float], T], timeout_s: float) -> T:
    """Retry a request while a partition has no leader.

    Args:
        question: Send the request once, with a time-out in seconds.
    """
    began = time.monotonic()
    left_s = timeout_s
    while True:
        try:
            return question(left_s)
        except KafkaException as error:
            code, passed_s = error.args[0].code(), time.monotonic() - began
            left_s = timeout_s - passed_s - _ASK_AGAIN_S
            if code not in _NO_LEADER or left_s <= 0 or (code in _UNKNOWN and passed_s > _UNKNOWN_S):
                raise
        time.sleep(_ASK_AGAIN_S)
