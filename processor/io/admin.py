"""Topics: making them, and asking what they are."""

from collections.abc import Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from processor.core.abc import Identity
from processor.core.errors import Refused, Retriable
from processor.core.topology import Topology
from processor.io.serde import INPUT_BYTES_MAX, OUTPUT_BYTES_MAX

# One call to the cluster; a broker that is there answers in milliseconds.
CALL_TIMEOUT_S = 10.0

# Keys and headers count too, and a forwarded or dead record may have a key as large as an input.
RECORD_BYTES_MAX = OUTPUT_BYTES_MAX + 2 * INPUT_BYTES_MAX
_LARGE = {"max.message.bytes": str(RECORD_BYTES_MAX)}
# The log is the truth that `verify` recomputes from, so time deletes nothing from it unless somebody says so.
_KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
# Small segments, so that compaction really happens; tombstones stay a day, longer than any restore takes.
_COMPACT = {"cleanup.policy": "compact", "segment.bytes": str(64 * 1024 * 1024), "min.cleanable.dirty.ratio": "0.3"}


def create_topics(topology: Topology, partitions: int, client: Mapping[str, str], *, inputs: bool = True) -> list[str]:
    """Make the topics of a pipeline that are missing; says which. Those that exist stay as they are.

    Args:
        inputs: also the input topics. A processor alone does not make those: who writes them decides about them.

    Raises:
        Retriable: the cluster does not answer.
        Refused: the cluster does not allow it.
    """
    wanted = {topology.changelog: {**_COMPACT, **_LARGE}}
    wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.outputs}
    wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.dead.values()}
    if inputs:
        # Larger than admission allows, so that what is too large becomes a dead letter and not a producer's riddle.
        wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.inputs}
    admin = AdminClient(dict(client))
    missing = [NewTopic(topic, partitions, config=config) for topic, config in wanted.items() if topic not in _existing(admin)]
    if not missing:
        return []
    created = []
    for topic, future in admin.create_topics(missing, request_timeout=CALL_TIMEOUT_S).items():
        try:
            future.result()
            created.append(topic)
        except KafkaException as error:
            # Two processors that start at once make the same topics; either did.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _unanswered(error, f"topic {topic} could not be made") from error
    return created


def partitions_of(admin: AdminClient, topology: Topology) -> int:
    """The number of partitions of all inputs and the changelog.

    Raises:
        Retriable: an input topic is missing, or the cluster does not answer.
        Refused: the numbers differ.
    """
    existing = _existing(admin)
    for topic in topology.inputs:
        if topic not in existing:
            raise Retriable(f"topic {topic} does not exist; make it with kafka-topics.sh --create --topic {topic}, or onefold up")
    counts = {topic: existing[topic] for topic in (*topology.inputs, topology.changelog) if topic in existing}
    if len(set(counts.values())) > 1:
        raise Refused(
            f"inputs and changelog must have the same number of partitions, but have {counts}: "
            f"keys would move away from their states. Make new topics and replay into them"
        )
    return counts[topology.inputs[0]]


def identity(admin: AdminClient, topic: str, partition: int) -> Identity:
    """Which topic the name stands for now, and what the partition holds (up to the high watermark)."""
    at = TopicPartition(topic, partition)
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=CALL_TIMEOUT_S)[topic].result()
        first = admin.list_offsets({at: OffsetSpec.earliest()}, request_timeout=CALL_TIMEOUT_S)[at].result()
        last = admin.list_offsets(
            {at: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=CALL_TIMEOUT_S
        )[at].result()
    except KafkaException as error:
        raise _unanswered(error, f"topic {topic} can not be described") from error
    return Identity(str(described.topic_id), first.offset, last.offset)


def group_of(topology: Topology) -> str:
    """The consumer group whose members share the tasks."""
    return f"onefold-{topology.name}"


def lag(topology: Topology, client: Mapping[str, str]) -> int:
    """Input records (and markers) that are readable and not yet folded, by the group's offsets. Drained is 0.

    The group's offsets are a courtesy of the processor, about half a second behind its progress.
    """
    admin = AdminClient(dict(client))
    partitions = [
        TopicPartition(topic, partition)
        for topic in topology.inputs
        for partition in range(_existing(admin).get(topic, 0))
    ]
    if not partitions:
        return 0
    try:
        group = group_of(topology)
        asked = [ConsumerGroupTopicPartitions(group, partitions)]
        committed = admin.list_consumer_group_offsets(asked, request_timeout=CALL_TIMEOUT_S)[group].result()
        next_offsets = {(at.topic, at.partition): max(at.offset, 0) for at in committed.topic_partitions}
        ends = admin.list_offsets(
            {at: OffsetSpec.latest() for at in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=CALL_TIMEOUT_S,
        )
        return sum(future.result().offset - next_offsets.get((at.topic, at.partition), 0) for at, future in ends.items())
    except KafkaException as error:
        raise _unanswered(error, f"the lag of {topology.name} can not be read") from error


def _existing(admin: AdminClient) -> dict[str, int]:
    """Topics and their numbers of partitions."""
    try:
        topics = admin.list_topics(timeout=CALL_TIMEOUT_S).topics
    except KafkaException as error:
        raise _unanswered(error, "the cluster does not answer") from error
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _unanswered(error: KafkaException, what: str) -> Refused | Retriable:
    cause = error.args[0]
    forbidden = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    kind = Refused if cause.code() in forbidden else Retriable
    return kind(f"{what}: {cause.name()}: {cause.str()}")
