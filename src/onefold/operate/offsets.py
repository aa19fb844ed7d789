"""Positions of processors and sinks: end offsets in Kafka, written offsets in PostgreSQL, and the lag between them.

Only this module, the sink and the verifier, which shares no code, query the ledger. Kafka's client is imported only for a
request: the dashboard imports the ledger query from here, and requests the lag only while the page is open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from onefold import postgres
from onefold.config.errors import first_line, is_silent
from onefold.config.settings import Settings
from onefold.operate import ping, pipelines
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading
from onefold.processor.core.changelog_format import other_partitions
from onefold.processor.core.errors import Forbidden, ProcessorError, Unauthenticated
from onefold.processor.core.topology import Topology

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from onefold.processor.io.admin import InputProgress

CALL_S = 5.0  # one request; a healthy server answers in milliseconds
DATABASE_IS_SILENT = "PostgreSQL does not answer"

#: (topic, partition)
Place = tuple[str, int]
#: Offsets [start, end) by partition.
Ranges = dict[Place, tuple[int, int]]
Lag = dict[str, int | None]
UNKNOWN: Lag = {"input_events": None, "output_events": None, "events": None}

#: The query for rows of `Landed`, for any kind of connection.
LEDGER = "SELECT sink, topic, partition, next_offset, updated_at FROM onefold.ledger"


#: The prefix of the session name of a sink (`spark_sink.postgres.connection`).
SESSION = "onefold-sink "


class Landed(NamedTuple):
    """A row of the ledger: the next offset of a partition for a sink, and the commit time."""

    sink: str
    topic: str
    partition: int
    next_offset: int
    updated_at: datetime


def landed(dsn: str, sink: str, timeout_s: float = CALL_S) -> dict[Place, int]:
    """The next offset of the sink by partition; {} before the tables of the sink exist.

    Uses a new connection, because a broken connection blocks until the network stack detects the failure. Raises psycopg.Error
    if the database does not answer. psycopg waits at least two seconds.
    """
    with postgres.connect(dsn, "onefold status", connect_s=timeout_s, patience_s=timeout_s) as connection:
        if connection.execute("SELECT to_regclass('onefold.ledger')").fetchone() == (None,):
            return {}
        return landed_over(connection, sink)


def landed_over(connection: psycopg.Connection[Any], sink: str) -> dict[Place, int]:
    """`landed` with the caller's connection. The ledger must exist."""
    rows = map(Landed._make, connection.execute(f"{LEDGER} WHERE sink = %s", (sink,)))
    return {(row.topic, row.partition): row.next_offset for row in rows}


def sinks(connection: psycopg.Connection[Any]) -> list[str]:
    """The names of the sinks with a session in this database now."""
    return _sinks(connection, locked=True)


def sinks_without_lock(connection: psycopg.Connection[Any]) -> list[str]:
    """The sinks without a lock of any pipeline (`onefold.pipeline_lock`): starting sinks, or sinks of an older release."""
    return _sinks(connection, locked=False)


def _sinks(connection: psycopg.Connection[Any], *, locked: bool) -> list[str]:
    """`locked`: include sinks with a lock."""
    asked = (
        "SELECT application_name FROM pg_stat_activity AS activity WHERE datname = current_database()"
        " GROUP BY application_name HAVING %s OR NOT bool_or(EXISTS ("
        "SELECT 1 FROM pg_locks WHERE pg_locks.pid = activity.pid AND locktype = 'advisory' AND granted))"
    )
    names = sorted(name for (name,) in connection.execute(asked, (locked,)).fetchall() if name.startswith(SESSION))
    return [name.removeprefix(SESSION) for name in names if name != f"{SESSION}migrate"]


class Behind(NamedTuple):
    """The unprocessed and the unwritten offset ranges of a pipeline, without empty ranges. None: unknown. The ranges also
    contain markers, aborted records, and gaps of compaction.

    Attributes:
        no_inputs, no_outputs: why the ranges are unknown, or "".
        partitions: in one sentence, that the changelog and the topics have different numbers of partitions, or "".
        refused: the sentences that name a right which Kafka refuses to this client: waiting does not help.
    """

    inputs: Ranges | None
    outputs: Ranges | None
    no_inputs: str = ""
    no_outputs: str = ""
    partitions: str = ""
    refused: tuple[str, ...] = ()


class LastBatch(NamedTuple):
    """The ledger row of a partition.

    Attributes:
        next_offset: the sink has written all records before this offset.
        topic_id: of the topic that was written.
    """

    next_offset: int
    topic_id: str


def last_batches(connection: psycopg.Connection[Any], sink: str) -> dict[Place, LastBatch]:
    """The ledger rows of a sink by partition. {} before the tables of the sink exist."""
    if connection.execute("SELECT to_regclass('onefold.ledger')").fetchone() == (None,):
        return {}
    asked = "SELECT topic, partition, next_offset, topic_id FROM onefold.ledger WHERE sink = %s"
    rows = connection.execute(asked, (sink,)).fetchall()
    return {(topic, partition): LastBatch(*rest) for topic, partition, *rest in rows}


def from_decision_log(topology: Topology, places: Iterable[Place]) -> str:
    """Say, in a sentence without its end, that an earlier Onefold filled the tables from the decision log; or "".

    Args:
        places: the partitions of the pipeline in the ledger.
    """
    if all(topic != topology.decisions for topic, _ in places):
        return ""
    log = topology.decisions
    return f"the rows of {topology.name} come from the decision log {log}, and this version reads output topics only"


def stable_ends(kafka: AdminClient, topics: Collection[str], timeout_s: float = CALL_S) -> dict[Place, int]:
    """The last stable offset by partition: the end for a consumer of committed records. Missing topics are left out. Raises
    KafkaException if Kafka does not answer.
    """
    from onefold import kafka_offsets

    return kafka_offsets.stable_ends(kafka, kafka_offsets.partitions(kafka, topics, timeout_s), timeout_s)


def high_watermarks(kafka: AdminClient, topics: Collection[str], timeout_s: float = CALL_S) -> dict[Place, int]:
    """The end offset by partition, open transactions included; else as `stable_ends`."""
    from onefold import kafka_offsets

    return kafka_offsets.high_watermarks(kafka, kafka_offsets.partitions(kafka, topics, timeout_s), timeout_s)


def since(kafka: AdminClient, topics: Collection[str], at_ms: int, timeout_s: float = CALL_S) -> dict[Place, int]:
    """The first offset by partition with this time or a later one, in milliseconds since 1970; -1 if there is none. Else as
    `stable_ends`.
    """
    from onefold import kafka_offsets

    return kafka_offsets.since(kafka, kafka_offsets.partitions(kafka, topics, timeout_s), at_ms, timeout_s)


def readable(topics: Collection[str], settings: Settings) -> Ranges | None:
    """The readable offsets by partition: from the first offset to the last stable offset. Missing topics are left out. None if
    Kafka does not answer.
    """
    from confluent_kafka import KafkaException

    from onefold import kafka_client, kafka_offsets

    kafka = kafka_client.admin(settings.client())
    try:
        places = kafka_offsets.partitions(kafka, topics, CALL_S)
        starts = kafka_offsets.starts(kafka, places, CALL_S)
        ends = kafka_offsets.stable_ends(kafka, places, CALL_S)
    except KafkaException:
        return None
    return {place: (starts[place], ends[place]) for place in places}


def landed_topics(domain: str) -> list[str]:
    """The output topics of a pipeline that the sink writes to tables. Raises `InvalidDeclaration`."""
    pipeline = pipelines.found()[domain]
    return [topic for topic in loading.load_topology(pipeline).outputs if topic not in pipeline.kafka_only]


def lag_of(domain: str, settings: Settings) -> Lag:
    """{"input_events", "output_events", "events"}: unprocessed offsets, unwritten offsets, and the sum. None: unknown. 0
    everywhere: the pipeline is drained.

    A cheap call to wait for 0: idle processors and sinks also advance past markers. `operate.lag` has the number of events and
    their age.
    """
    try:
        topology = loading.load_topology(pipelines.found()[domain])
    except InvalidDeclaration:
        return dict(UNKNOWN)
    found = behind(topology, settings)
    waiting_in, waiting_out = (None if ranges is None else offsets(ranges) for ranges in (found.inputs, found.outputs))
    total = waiting_in + waiting_out if waiting_in is not None and waiting_out is not None else None
    return {"input_events": waiting_in, "output_events": waiting_out, "events": total}


def lag_of_all(settings: Settings) -> dict[str, Lag]:
    """The lag of every pipeline. If Kafka does not answer the first request, there are no further requests."""
    names = pipelines.domains()
    missing = missing_topics(settings)
    if missing is None:
        return {name: dict(UNKNOWN) for name in names}
    return {name: dict(UNKNOWN) if name in missing else lag_of(name, settings) for name in names}


def missing_topics(settings: Settings) -> dict[str, list[str]] | None:
    """The missing topics by pipeline; None if Kafka does not answer. A missing topic has no lag, but its pipeline is not
    drained.
    """
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    try:
        there = kafka_client.admin(settings.client()).list_topics(timeout=CALL_S).topics
    except KafkaException:
        return None
    missing = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            topology = loading.load_topology(pipeline)
        except InvalidDeclaration:
            continue
        if lacking := [topic for topic in (*topology.inputs, *topology.outputs) if topic not in there]:
            missing[name] = lacking
    return missing


def behind(topology: Topology, settings: Settings, ask_database: bool = True) -> Behind:
    """The unprocessed and the unwritten ranges now. Inputs are read first, so a record that moves on between the two reads is
    never missed.
    """
    reached, error = _reached(topology, settings)
    no_inputs = first_line(error) if error is not None else ""
    moved = _other_partitions(topology.name, reached)
    found = Behind(_after(reached), None, no_inputs, "", moved, _refused(error))
    if not ask_database:
        return found._replace(no_outputs=DATABASE_IS_SILENT)
    try:
        at = landed(settings.postgres(), topology.name)
        if why := from_decision_log(topology, at):
            return found._replace(no_outputs=f"{why}: run `onefold rebuild {topology.name}`")
        return found._replace(outputs=_between(at, _ends(landed_topics(topology.name), settings)))
    except psycopg.Error as silent:
        return found._replace(no_outputs=unanswered(silent))
    except ProcessorError as away:
        return found._replace(no_outputs=first_line(away), refused=(*found.refused, *_refused(away)))


def behind_of_all(settings: Settings, ask_database: bool = True) -> dict[str, Behind] | None:
    """The ranges of every pipeline, except pipelines with missing topics or with faults. None if Kafka does not answer the
    first request; then there are no further requests.
    """
    missing = missing_topics(settings)
    if missing is None:
        return None
    found = behind_of([name for name in pipelines.domains() if name not in missing], settings, ask_database)
    hidden = ping.hidden(missing, settings)
    return found | {name: Behind(None, None, why, why, refused=(why,)) for name, why in hidden.items()}


def behind_of(names: Collection[str], settings: Settings, ask_database: bool = True) -> dict[str, Behind]:
    """The ranges of these pipelines. The call waits at most once for a database that does not answer."""
    found: dict[str, Behind] = {}
    for name in names:
        with suppress(InvalidDeclaration):
            topology = loading.load_topology(pipelines.found()[name])
            found[name] = behind(topology, settings, ask_database)
            ask_database = ask_database and found[name].no_outputs != DATABASE_IS_SILENT
    return found


def unanswered(error: psycopg.Error) -> str:
    """Why the database did not answer: a refusal is reported as a refusal, and not as an unreachable server."""
    return DATABASE_IS_SILENT if is_silent(error) else f"PostgreSQL refuses: {first_line(error)}"


def _reached(topology: Topology, settings: Settings) -> tuple[dict[Place, InputProgress] | None, ProcessorError | None]:
    """The processed offsets of the inputs; or why they cannot be read."""
    from onefold.processor.io import admin

    try:
        return admin.standing(topology, settings.client()), None
    except ProcessorError as error:
        return None, error


def _refused(error: ProcessorError | None) -> tuple[str, ...]:
    return (first_line(error),) if isinstance(error, Forbidden | Unauthenticated) else ()


def _other_partitions(pipeline: str, reached: dict[Place, InputProgress] | None) -> str:
    topics = 1 + max((partition for _, partition in reached or ()), default=-1)
    return next(filter(None, (other_partitions(at.states, pipeline, topics) for at in (reached or {}).values())), "")


def _ends(topics: Collection[str], settings: Settings) -> dict[Place, int]:
    """`stable_ends`. Raises `Retriable` if Kafka does not answer, and `Refused` if Kafka refuses the request."""
    from confluent_kafka import KafkaException

    from onefold import kafka_client
    from onefold.processor.io import kafka_errors

    client = kafka_client.admin(settings.client())
    try:
        return stable_ends(client, topics)
    except KafkaException as error:
        raise kafka_errors.unanswered(error, f"the ends of {', '.join(topics)} cannot be read", client) from None


def _after(standing: dict[Place, InputProgress] | None) -> Ranges | None:
    if standing is None:
        return None
    return {place: (at.reached, at.end) for place, at in standing.items() if at.reached < at.end}


def _between(at: dict[Place, int], ends: dict[Place, int]) -> Ranges:
    return {place: (at.get(place, 0), end) for place, end in ends.items() if at.get(place, 0) < end}


def offsets(ranges: Ranges) -> int:
    """The number of offsets in the ranges."""
    return sum(end - start for start, end in ranges.values())
