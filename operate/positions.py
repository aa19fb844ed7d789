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


class _Decided(NamedTuple):
    """Of tables that are filled from a decision log: up to which offset of each input they have what came true; and whether
    a task has left the log, so that what it does now is not in there.
    """

    reached: dict[Place, int]
    left: bool


def _decided(dsn: str, sink: str, log: str) -> _Decided:
    asked = "SELECT partition, decided FROM onefold.ledger WHERE sink = %s AND topic = %s AND decided IS NOT NULL"
    with psycopg.connect(dsn, connect_timeout=int(CALL_S)) as connection:
        rows = connection.execute(asked, (sink, log)).fetchall()
    reached = {
        (topic, partition): at["next_offset"] for partition, decided in rows for topic, at in decided["inputs"].items()
    }
    return _Decided(reached, any(decided["closed"] for _, decided in rows))


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
    waiting_in, waiting_out = _waiting(topology, settings)
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


def _waiting(topology: Topology, settings: Settings) -> tuple[int | None, int | None]:
    """Input events that are not yet folded, and output events that have not yet landed."""
    waiting_in = _input_events(topology, settings)
    try:
        at = landed(settings.postgres(), topology.name)
        if any(topic == topology.decisions for topic, _ in at):
            decided = _decided(settings.postgres(), topology.name, topology.decisions)
            return _waiting_for_log(topology, settings, waiting_in, decided, at)
    except psycopg.Error:
        return waiting_in, None
    topics = landed_topics(topology.name)
    if not at:  # nobody has landed anything, and nobody knows yet from where
        topics = [topology.decisions, *topics]
    ends = _ends(topics, settings)
    return waiting_in, _behind(ends, at) if ends is not None else None


def _waiting_for_log(
    topology: Topology, settings: Settings, unpublished: int | None, decided: _Decided, at: dict[Place, int]
) -> tuple[int | None, int | None]:
    """`_waiting` where the tables are filled from the decision log: nobody has to publish for them, and what is decided and
    landed is done.
    """
    inputs, log = _ends(topology.reads, settings), _ends([topology.decisions], settings)
    if inputs is None or log is None or unpublished is None:
        return unpublished, None
    return min(unpublished, _behind(inputs, decided.reached)), None if decided.left else _behind(log, at)


def _input_events(topology: Topology, settings: Settings) -> int | None:
    from onefold.processor.io import admin

    try:
        return admin.lag(topology, quiet(settings))
    except ProcessorError:
        return None


def _ends(topics: Collection[str], settings: Settings) -> dict[Place, int] | None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return stable_ends(AdminClient(quiet(settings)), topics)
    except KafkaException:
        return None


def _behind(ends: dict[Place, int], at: dict[Place, int]) -> int:
    return sum(max(0, end - at.get(place, 0)) for place, end in ends.items())
