"""How far everything has come: end offsets in Kafka, landed offsets in PostgreSQL, and the lag between them.

The only place outside of the sink, and of the judge, which shares no code, that asks the ledger. Kafka's client is imported
when Kafka is asked: the dashboard takes the ledger's query from here and asks for the lag only while somebody looks.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from onefold.operate import pipelines
from onefold.operate.settings import Settings
from onefold.pipelines import Faulty
from onefold.processor import loading
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import Topology

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

CALL_S = 5.0  # one question; a healthy server answers in milliseconds

#: (topic, partition)
Place = tuple[str, int]
Lag = dict[str, int | None]
UNKNOWN: Lag = {"input_events": None, "output_events": None, "events": None}

#: The query whose rows are `Landed`, for connections of any kind.
LEDGER = "SELECT sink, topic, partition, next_offset, updated_at FROM onefold.ledger"


class Landed(NamedTuple):
    """A row of the ledger: the offset that a sink lands next of a partition, and when it was committed."""

    sink: str
    topic: str
    partition: int
    next_offset: int
    updated_at: datetime


def landed(dsn: str, sink: str, timeout_s: float = CALL_S) -> dict[Place, int]:
    """Per partition the offset that the sink lands next; {} before its first table was made.

    Over a connection of its own: one that was cut would stay silent for as long as the network stack likes.
    Raises psycopg.Error when the database does not answer. psycopg waits two seconds at least.
    """
    with psycopg.connect(dsn, connect_timeout=int(timeout_s)) as connection:
        if connection.execute("SELECT to_regclass('onefold.ledger')").fetchone() == (None,):
            return {}
        return landed_over(connection, sink)


def landed_over(connection: psycopg.Connection[Any], sink: str) -> dict[Place, int]:
    """`landed` over a connection of the caller's, which knows that the ledger is there."""
    rows = map(Landed._make, connection.execute(f"{LEDGER} WHERE sink = %s", (sink,)))
    return {(row.topic, row.partition): row.next_offset for row in rows}


def stable_ends(kafka: AdminClient, topics: Collection[str], timeout_s: float = CALL_S) -> dict[Place, int]:
    """Per partition the last stable offset: where a reader of committed records would stand at the end. Topics that are not
    there are left out. Raises KafkaException when Kafka does not answer.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

    found = kafka.list_topics(timeout=timeout_s).topics
    places = [
        TopicPartition(name, partition) for name in topics if name in found for partition in found[name].partitions
    ]
    if not places:
        return {}
    asked: Any = {place: OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]  # the library forgot its annotation
    answers = kafka.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_s)
    return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}


def landed_topics(domain: str) -> list[str]:
    """The output topics of a pipeline that are landed in tables. Raises `Faulty`."""
    pipeline = pipelines.found()[domain]
    return [topic for topic in loading.load_topology(pipeline).outputs if topic not in pipeline.kafka_only]


def lag_of(domain: str, settings: Settings) -> Lag:
    """{"input_events", "output_events", "events"}: not yet folded, not yet landed, both. None where it cannot be
    determined. 0 everywhere: the pipeline is drained.
    """
    try:
        topology = loading.load_topology(pipelines.found()[domain])
    except Faulty:
        return dict(UNKNOWN)
    waiting_in = _input_events(topology, settings)
    waiting_out = _output_events(domain, settings)
    total = waiting_in + waiting_out if waiting_in is not None and waiting_out is not None else None
    return {"input_events": waiting_in, "output_events": waiting_out, "events": total}


def lag_of_all(settings: Settings) -> dict[str, Lag]:
    """The lag of every domain; asks nothing more of a Kafka that does not answer the first question."""
    names = pipelines.domains()
    missing = missing_topics(settings)
    if missing is None:
        return {name: dict(UNKNOWN) for name in names}
    return {name: dict(UNKNOWN) if name in missing else lag_of(name, settings) for name in names}


def missing_topics(settings: Settings) -> dict[str, list[str]] | None:
    """Per pipeline the topics that Kafka does not have; None when Kafka does not answer. Nothing is late in a topic that is
    not there, which is no reason to call the pipeline drained.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        there = AdminClient(quiet(settings)).list_topics(timeout=CALL_S).topics
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


def quiet(settings: Settings) -> dict[str, Any]:
    """A client's settings. librdkafka's own complaints would mix with a command's output: what fails is said in our words."""
    return {**settings.client(), "log_level": "0"}


def _input_events(topology: Topology, settings: Settings) -> int | None:
    from onefold.processor.io import admin

    try:
        return admin.lag(topology, quiet(settings))
    except ProcessorError:
        return None


def _output_events(domain: str, settings: Settings) -> int | None:
    """Readable ends of the output topics that are landed, less what the ledger says has landed."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        ends = stable_ends(AdminClient(quiet(settings)), landed_topics(domain))
        at = landed(settings.postgres(), domain)
    except (KafkaException, psycopg.Error):
        return None
    return sum(max(0, end - at.get(place, 0)) for place, end in ends.items())
