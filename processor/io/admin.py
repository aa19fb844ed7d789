"""Create and describe Kafka topics."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_ask, kafka_client, kafka_offsets, names, pauses
from onefold.error_codes import Code
from onefold.pauses import Pause
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.changelog_format import check_format
from onefold.processor.core.errors import Refused, Retriable
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.io import topics
from onefold.processor.io.kafka_errors import CALL_TIMEOUT_S, check_visible, unanswered
from onefold.processor.io.range_reader import between
from onefold.processor.io.topics import RECORD_BYTES_MAX, Described
from onefold.replication import AS_BROKERS, Replication

log = structlog.get_logger()

# Every transaction of a task ends with a progress record and a marker, so the last few offsets are nearly always enough.
_TAIL = 20


def create_topics(
    topology: Topology,
    partitions: int,
    client: Mapping[str, str],
    *,
    inputs: bool = True,
    decisions: bool = False,
    replication: Replication = AS_BROKERS,
) -> list[str]:
    """Create the missing topics of a pipeline, and return their names. Existing topics stay unchanged.

    Args:
        decisions: include the decision log.
        inputs: include the input topics. A processor alone does not create inputs: their producer chooses the settings.
        replication: the replication of the created topics.

    Raises:
        Retriable: the cluster does not respond.
        Refused: the cluster does not allow the operation.
    """
    wanted = topics.of_pipeline(topology, partitions, inputs=inputs, decisions=decisions)
    admin = connect(client)
    there = existing(admin)
    made = create_missing(admin, {topic: how for topic, how in wanted.items() if topic not in there}, replication)
    if names.pauses_topic(topology.name) not in there:
        try:
            made += create_missing(admin, topics.of_pauses(topology.name), replication)
        except Refused as error:  # perhaps only an administrator may create topics; processing needs no pauses topic
            log.warning(f"{topology.name} cannot be paused: {error}", code=str(error.code))
    return made


def create_pauses(pipeline: str, client: Mapping[str, str], replication: Replication) -> None:
    """Create the pauses topic of a pipeline if it is missing. Raises the errors of `create_topics`."""
    admin = connect(client)
    if names.pauses_topic(pipeline) not in existing(admin):
        create_missing(admin, topics.of_pauses(pipeline), replication)


def write_pause(
    pipeline: str, pause: Pause | None, client: Mapping[str, str], replication: Replication = AS_BROKERS
) -> None:
    """Write a pause, or the end of a pause. Raises the errors of `create_topics`."""
    create_pauses(pipeline, client, replication)
    try:
        pauses.write(client, pipeline, pause, CALL_TIMEOUT_S)
    except KafkaException as error:
        raise unanswered(error, f"topic {names.pauses_topic(pipeline)} cannot be written", connect(client)) from error


def create_replays(topology: Topology, client: Mapping[str, str], replication: Replication) -> None:
    """Create the topic of replay receipts if it is missing.

    Raises:
        Retriable: the cluster does not respond.
        Refused: the cluster does not allow the operation.
    """
    admin = connect(client)
    if topology.replays not in existing(admin):
        create_missing(admin, topics.of_replays(topology), replication)


def create_missing(admin: AdminClient, missing: Mapping[str, Described], replication: Replication) -> list[str]:
    """Create the topics, and return the names of those created here. Raises the errors of `create_topics`."""
    if not missing:
        return []
    check_visible(admin, list(missing))
    wanted = [
        NewTopic(topic, how.partitions, replication.replicas, config={**how.config, **replication.config})
        for topic, how in missing.items()
    ]
    created = []
    for topic, future in kafka_ask.create_topics(admin, wanted, CALL_TIMEOUT_S).items():
        try:
            future.result()
            created.append(topic)
        except KafkaException as error:
            # Two processes may start at once and create the same topics.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise unanswered(error, f"topic {topic} could not be made", admin) from error
    return created


def partitions_of(admin: AdminClient, topology: Topology) -> int:
    """Return the common number of partitions of all inputs and the changelog.

    Raises:
        Retriable: an input topic of another producer is missing, or the cluster does not respond.
        Refused: the numbers differ.
    """
    there = existing(admin)
    for topic in topology.inputs:
        if topic not in there and topic not in topology.fed:
            check_visible(admin, [topic])
            raise Retriable(
                Code.TOPIC_MISSING,
                f"topic {topic} does not exist; make it with kafka-topics.sh --create --topic {topic}, or onefold up",
            )
    counts = {topic: there[topic] for topic in (*topology.reads, topology.changelog) if topic in there}
    if len(set(counts.values())) > 1:
        raise Refused(
            Code.PARTITIONS_CHANGED,
            f"inputs and changelog must have the same number of partitions, but have {counts}: "
            f"keys would move away from their states. Start over with `onefold reset {topology.name}`, or make new topics and "
            f"replay into them",
        )
    return next(iter(counts.values()))


def partition_counts(admin: AdminClient, topics: Sequence[str]) -> dict[str, int]:
    """Return the number of partitions of each existing topic among `topics`.

    Raises:
        Retriable: the cluster does not respond.
        Refused: the cluster does not allow the request.
    """
    found = {}
    for topic, asked in kafka_ask.describe_topics(admin, topics, CALL_TIMEOUT_S)().items():
        try:
            found[topic] = len(asked.result().partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise unanswered(error, f"topic {topic} cannot be described", admin) from error
    return found


def identity(admin: AdminClient, topic: str, partition: int) -> PartitionIdentity:
    """Return the present topic id of the name, and the partition's offsets up to the high watermark."""
    at = topic, partition
    try:
        described = kafka_ask.describe_topics(admin, [topic], CALL_TIMEOUT_S)()[topic].result()
        start = kafka_offsets.starts(admin, [at], CALL_TIMEOUT_S)[at]
        end = kafka_offsets.high_watermarks(admin, [at], CALL_TIMEOUT_S)[at]
    except KafkaException as error:
        raise unanswered(error, f"topic {topic} cannot be described", admin) from error
    return PartitionIdentity(str(described.topic_id), start, end)


def offset_at(admin: AdminClient, topic: str, partition: int, at_ms: int) -> int:
    """Return the first offset with a record at `at_ms` (milliseconds since 1970) or later; without one, the end."""
    at = topic, partition
    try:
        found = kafka_offsets.since(admin, [at], at_ms, CALL_TIMEOUT_S)[at]
    except KafkaException as error:
        raise unanswered(error, f"topic {topic} cannot be described", admin) from error
    return found if found >= 0 else high_watermark(admin, topic, partition)


def delete_before(admin: AdminClient, topic: str, partition: int, offset: int) -> None:
    """Delete the records of a partition before the offset."""
    at = TopicPartition(topic, partition, offset)
    try:
        admin.delete_records([at], request_timeout=CALL_TIMEOUT_S)[at].result()
    except KafkaException as error:
        raise unanswered(error, f"records of {topic} cannot be deleted", admin) from error


def high_watermark(admin: AdminClient, topic: str, partition: int) -> int:
    """Return the end of the partition, including open transactions."""
    return identity(admin, topic, partition).end


def tombstones_kept_s(admin: AdminClient, topic: str) -> float | None:
    """Return the minimum lifetime of a record that deletes a key of a compacted topic, in seconds; None without the right."""
    found = _setting(admin, [topic], "delete.retention.ms")[topic]
    return found / 1000 if found is not None else None


def record_bytes_max(admin: AdminClient, topics: Iterable[str]) -> dict[str, int]:
    """Return the maximum bytes of a record for each topic. Without the right to ask, return the client's own limit."""
    found = _setting(admin, topics, "max.message.bytes")
    return {topic: min(RECORD_BYTES_MAX, limit or RECORD_BYTES_MAX) for topic, limit in found.items()}


def _setting(admin: AdminClient, topics: Iterable[str], name: str) -> dict[str, int | None]:
    """Return a numeric setting per topic; None without the right to ask."""
    asked = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in topics}
    answers = kafka_ask.describe_configs(admin, list(asked.values()), CALL_TIMEOUT_S)()
    found: dict[str, int | None] = {}
    for topic, resource in asked.items():
        try:
            entry = answers[resource].result().get(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise unanswered(error, f"the settings of topic {topic} cannot be read", admin) from error
            entry = None
        found[topic] = int(entry.value) if entry is not None else None
    return found


def stable_end(admin: AdminClient, topic: str, partition: int) -> int:
    """Return the end of the partition for readers of committed records: at most the start of an open transaction."""
    return _ends(admin, [(topic, partition)])[topic, partition]


def ask_topic_ids(admin: AdminClient, topics: Sequence[str]) -> Callable[[], dict[str, str]]:
    """Start a request for the ids of the topics. The returned function waits for the response, so the caller can do other work
    meanwhile.
    """
    wait = kafka_ask.describe_topics(admin, topics, CALL_TIMEOUT_S)

    def answer() -> dict[str, str]:
        try:
            return {topic: str(future.result().topic_id) for topic, future in wait().items()}
        except KafkaException as error:
            raise unanswered(error, f"the topics {', '.join(topics)} cannot be described", admin) from error

    return answer


def group_of(topology: Topology) -> str:
    """Return the name of the consumer group that divides the tasks."""
    return f"onefold-{topology.name}"


def replicas_group_of(topology: Topology) -> str:
    """Return the name of the consumer group with the processes of a pipeline with replicas. The group divides no tasks."""
    return f"{group_of(topology)}.replicas"


class InputProgress(NamedTuple):
    """The progress of an input partition.

    Attributes:
        reached: the offset that is folded next.
        end: the end for readers of committed records.
        states: the number of partitions in the task's progress record; None: unknown, or no progress record.
    """

    reached: int
    end: int
    states: int | None = None


def lag(topology: Topology, client: Mapping[str, str]) -> int:
    """Return the number of input offsets that are readable and not yet folded. The count includes markers and aborted records
    until the task passes them, so 0 means fully processed. `operate.lag` counts events.
    """
    return sum(at.end - min(at.end, at.reached) for at in standing(topology, client).values())


def standing(topology: Topology, client: Mapping[str, str]) -> dict[tuple[str, int], InputProgress]:
    """Return the progress of each input partition, including ticks.

    The progress is that of the changelog, not the group's offsets. The ends are requested afterwards. So a record that
    the pipeline has written into its feedback topics meanwhile counts as not yet folded.

    Raises:
        Retriable: the cluster does not respond.
        Refused: the cluster does not allow the request.
    """
    admin = connect(client)
    counts = existing(admin)
    inputs = [(topic, p) for topic in topology.reads for p in range(counts.get(topic, 0))]
    if not inputs:
        return {}
    if topology.changelog not in counts:
        check_visible(admin, [topology.changelog])
    reached = _reached(admin, topology, counts.get(topology.changelog, 0), client)
    ends = _ends(admin, inputs)
    unread = InputProgress(0, 0)
    return {at: reached.get(at, unread)._replace(end=end) for at, end in ends.items()}


def _reached(
    admin: AdminClient, topology: Topology, partitions: int, client: Mapping[str, str]
) -> dict[tuple[str, int], InputProgress]:
    """Return each input partition's progress by the last progress record of its task, without the end."""
    reached: dict[tuple[str, int], InputProgress] = {}
    for partition, value in last_progresses(admin, topology, range(partitions), client).items():
        progress = json.loads(value)
        check_format(progress, topology.changelog)
        states = progress.get("partitions")
        reached |= {
            (topic, partition): InputProgress(at["next_offset"], 0, states) for topic, at in progress["inputs"].items()
        }
    return reached


def last_progresses(
    admin: AdminClient, topology: Topology, tasks: Iterable[int], client: Mapping[str, str]
) -> dict[int, bytes]:
    """Return the value of each task's last committed progress record. Tasks without a progress record are absent."""
    ends = _ends(admin, [(topology.changelog, partition) for partition in tasks])
    progresses: dict[int, bytes] = {}
    span = _TAIL
    while ends:
        for message in between(client, {at: (max(0, end - span), end) for at, end in ends.items()}):
            partition, value = message.partition(), message.value()
            if message.key() == PROGRESS_KEY:
                assert partition is not None, "whatever is read is of a partition"
                assert value is not None, "a progress record is never a tombstone"
                progresses[partition] = value
        # Only aborted transactions in this range: read a longer one, up to the whole partition.
        ends = {at: end for at, end in ends.items() if at[1] not in progresses and end > span}
        span *= 10
    return progresses


def _ends(admin: AdminClient, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the last stable offsets."""
    try:
        return kafka_offsets.stable_ends(admin, partitions, CALL_TIMEOUT_S)
    except KafkaException as error:
        raise unanswered(error, "the ends of topics cannot be read", admin) from error


def connect(client: Mapping[str, str]) -> kafka_client.Admin:
    """Create an admin client with its log disabled, since errors are raised. Raises `Refused` if a setting is wrong."""
    try:
        return kafka_client.admin(client)
    except KafkaException as error:
        raise Refused(Code.KAFKA_SETTING_WRONG, f"the Kafka settings cannot be used: {error.args[0].str()}") from None


def existing(admin: AdminClient) -> dict[str, int]:
    """Return the existing topics with their numbers of partitions."""
    return {name: len(topic.partitions) for name, topic in _metadata(admin).topics.items()}


def led(admin: AdminClient, topic: str) -> list[int]:
    """Return the partitions of a topic that have a leader. A partition without a leader cannot be read."""
    found = _metadata(admin).topics.get(topic)
    return sorted(number for number, at in found.partitions.items() if at.leader >= 0) if found is not None else []


def cluster_id(admin: AdminClient) -> str:
    """Return Kafka's id of the cluster, or "" if the cluster has none."""
    return str(_metadata(admin).cluster_id or "")


def _metadata(admin: AdminClient) -> ClusterMetadata:
    try:
        return admin.list_topics(timeout=CALL_TIMEOUT_S)
    except KafkaException as error:
        raise unanswered(error, "the cluster does not answer", admin) from error
