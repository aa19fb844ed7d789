"""How far the tables are behind the topics, in events, to the database commit: drained is 0 everywhere."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.operate import pipelines
from onefold.operate.settings import Settings
from onefold.pipelines import Faulty
from onefold.processor import loading
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import Topology
from onefold.processor.io import admin

CALL_SECONDS = 5.0  # one question; a server that is well answers in milliseconds

Lag = dict[str, int | None]
UNKNOWN: Lag = {"input_events": None, "output_events": None, "events": None}


def of_domain(domain: str, settings: Settings) -> Lag:
    """{"input_events", "output_events", "events"}: not yet folded, not yet landed, both. None where it can not be
    told.
    """
    try:
        pipeline = pipelines.found()[domain]
        topology = loading.load_topology(pipeline)
    except Faulty:
        return dict(UNKNOWN)
    waiting_in = _input_events(topology, settings)
    waiting_out = _output_events(topology, pipeline.kafka_only, settings)
    total = waiting_in + waiting_out if waiting_in is not None and waiting_out is not None else None
    return {"input_events": waiting_in, "output_events": waiting_out, "events": total}


def of_all(settings: Settings) -> dict[str, Lag]:
    """The lag of every domain; asks nothing more of a Kafka that does not answer the first question."""
    names = pipelines.domains()
    missing = missing_topics(settings)
    if missing is None:
        return {name: dict(UNKNOWN) for name in names}
    return {name: dict(UNKNOWN) if name in missing else of_domain(name, settings) for name in names}


def missing_topics(settings: Settings) -> dict[str, list[str]] | None:
    """Per pipeline the topics that Kafka does not have; None when Kafka does not answer. Nothing is late in a topic that is
    not there, which is no reason to call the pipeline drained.
    """
    try:
        there = AdminClient(_quiet(settings)).list_topics(timeout=CALL_SECONDS).topics
    except KafkaException:
        return None
    missing = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            topology = loading.load_topology(pipeline)
        except Faulty:
            continue
        if lacking := [topic for topic in (*topology.inputs, *topology.outputs) if topic not in there]:
            missing[name] = lacking
    return missing


def _quiet(settings: Settings) -> dict[str, Any]:
    """librdkafka's own complaints would mix with a command's output; a failed call is told in our words."""
    return {**settings.client(), "log_level": "0"}


def _input_events(topology: Topology, settings: Settings) -> int | None:
    try:
        return admin.lag(topology, _quiet(settings))
    except ProcessorError:
        return None


def _output_events(topology: Topology, kafka_only: Collection[str], settings: Settings) -> int | None:
    """Readable ends of the output topics that are landed, less what the ledger says has landed."""
    try:
        ends = _stable_ends([topic for topic in topology.outputs if topic not in kafka_only], _quiet(settings))
        landed = _landed(topology.name, settings.postgres())
    except (KafkaException, psycopg.Error):
        return None
    return sum(max(0, end - landed.get(place, 0)) for place, end in ends.items())


def _stable_ends(names: Collection[str], client: dict[str, str]) -> dict[tuple[str, int], int]:
    """Per (topic, partition) the last stable offset: where a read_committed reader would stand at the end."""
    kafka = AdminClient(dict(client))
    topics = kafka.list_topics(timeout=CALL_SECONDS).topics
    places = [
        TopicPartition(name, partition) for name in names if name in topics for partition in topics[name].partitions
    ]
    if not places:
        return {}
    asked: Any = {place: OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]  # the library forgot its annotation
    answers = kafka.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=CALL_SECONDS)
    return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}


def _landed(sink: str, dsn: str) -> dict[tuple[str, int], int]:
    """Per (topic, partition) the next offset that the ledger expects; empty before the first table was made."""
    with psycopg.connect(dsn, connect_timeout=int(CALL_SECONDS)) as connection:
        if connection.execute("SELECT to_regclass('onefold.ledger')").fetchone() == (None,):
            return {}
        rows = connection.execute("SELECT topic, partition, next_offset FROM onefold.ledger WHERE sink = %s", (sink,))
        return {(topic, partition): next_offset for topic, partition, next_offset in rows}
