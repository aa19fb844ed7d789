"""Tasks of one pipeline: the assigned processors, and the backlog of each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from onefold.config.settings import Settings
from onefold.operate import offsets, pipelines
from onefold.operate.offsets import Ranges
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from onefold.processor.core.topology import Topology


class ShownTask(NamedTuple):
    """One partition number of a pipeline's inputs and outputs.

    Attributes:
        who: processors with this task.
        to_fold: unprocessed input offsets; None: unknown.
        to_land: unwritten offsets of the sink's topics; None: unknown.
    """

    partition: int
    who: Sequence[str]
    to_fold: int | None
    to_land: int | None


def of(name: str, settings: Settings) -> Sequence[ShownTask] | None:
    """List the tasks of a pipeline. None if Kafka does not answer, after several blocking seconds, or the topology does not
    load."""
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    try:
        topology = loading.load_topology(pipelines.found()[name])
    except InvalidDeclaration:
        return None
    kafka = kafka_client.admin(settings.client())
    try:
        there = kafka.list_topics(timeout=offsets.CALL_S).topics
        numbers = sorted({number for topic in topology.reads if topic in there for number in there[topic].partitions})
        members = _members(kafka, topology, settings.replicas_of(pipelines.found()[name]) > 1, numbers)
    except KafkaException:
        return None
    behind = offsets.behind(topology, settings)
    return [
        ShownTask(number, sorted(members.get(number, ())), _of(behind.inputs, number), _of(behind.outputs, number))
        for number in numbers
    ]


def _of(ranges: Ranges | None, number: int) -> int | None:
    if ranges is None:
        return None
    return sum(end - start for (_, partition), (start, end) in ranges.items() if partition == number)


def _members(
    kafka: AdminClient, topology: Topology, replicas: bool, numbers: Sequence[int]
) -> dict[int, Sequence[str]]:
    """Instances by task. Each active-active replica has all tasks. Raises KafkaException."""
    from confluent_kafka import KafkaError, KafkaException

    from onefold.processor.io import admin

    group = admin.replicas_group_of(topology) if replicas else admin.group_of(topology)
    try:
        described = kafka.describe_consumer_groups([group], request_timeout=offsets.CALL_S)[group].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise
    found: dict[int, set[str]] = {}
    for member in described.members or ():
        who = (member.group_instance_id or member.client_id).removeprefix(f"{group}-")
        assigned = member.assignment.topic_partitions if member.assignment else ()
        for number in numbers if replicas else {place.partition for place in assigned}:
            found.setdefault(number, set()).add(who)
    return {number: sorted(names) for number, names in found.items()}
