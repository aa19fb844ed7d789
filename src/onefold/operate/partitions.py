"""Detect partitions added to topics of a pipeline. Processors do not read added partitions.

Kafka's client is imported only for a request.
"""

from __future__ import annotations

from contextlib import suppress

from onefold.config.settings import Settings
from onefold.operate import pipelines
from onefold.operate.offsets import CALL_S
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading


def added(settings: Settings) -> dict[str, str]:
    """A sentence for each pipeline with different numbers of partitions in inputs and changelog. {} if Kafka does not
    answer.
    """
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    try:
        there = kafka_client.admin(settings.client()).list_topics(timeout=CALL_S).topics
    except KafkaException:
        return {}
    found = {}
    for name, pipeline in pipelines.found().pipelines.items():
        with suppress(InvalidDeclaration):  # `check` reports the fault
            topology = loading.load_topology(pipeline)
            counts = {
                topic: len(there[topic].partitions) for topic in (*topology.reads, topology.changelog) if topic in there
            }
            if topology.changelog in counts and (sentence := _sentence(counts, topology.changelog)):
                found[name] = sentence
    return found


def _sentence(counts: dict[str, int], changelog: str) -> str:
    states = counts[changelog]
    for topic, partitions in counts.items():
        if partitions == states:
            continue
        differ = f"topic {topic} has {partitions} partitions, and {changelog} {states}"
        if partitions < states:
            return f"{differ}: a start is refused"
        unread = f"{topic}/{states}" if partitions == states + 1 else f"{topic}/{states} to {topic}/{partitions - 1}"
        return f"{differ}: no task reads what lies in {unread}, and a start is refused"
    return ""
