"""Write output records from Kafka without Spark: merge them by the pipeline's own statements, and advance the ledger."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from onefold.operate.record_reader import RecordPlace, Stored
from onefold.operate.shown_values import Values
from onefold.pipelines import find
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, identity
from onefold.spark_sink.contracts import Domain, Target, load_domain
from tests.support.processes import records

WRITER = "a-sink"


def land(
    topology: Topology, client: dict[str, str], dsn: str, only: Iterable[str] = (), sql_root: Path | None = None
) -> None:
    """Write all committed output records in one transaction.

    `only`: write these topics only. `sql_root`: use other statements than the pipeline's.
    """
    domain, values = of(topology, sql_root)
    with psycopg.connect(dsn) as connection:
        for topic in only or [name for name in topology.outputs if name in domain.targets]:
            found = [
                Stored(RecordPlace(one.topic, one.partition, one.offset), 0, one.key, one.value, ())
                for one in records(client, topic)
            ]
            _merge(connection, domain.targets[topic], [columns_of(values, stored) for stored in found])
            _move(connection, topology, client, topic)


def of(topology: Topology, sql_root: Path | None = None) -> tuple[Domain, Values]:
    """The pipeline's tables, and the decoder of its records."""
    pipeline = find()[topology.name]
    return load_domain(topology.name, pipeline.contracts, sql_root or pipeline.sql), Values(pipeline, topology, None)


def columns_of(values: Values, stored: Stored) -> dict[str, Any]:
    """A record's row, by column."""
    fields, problem = values.fields(stored)
    assert fields is not None, problem
    return {**fields, **stored.place._asdict()}


def _merge(connection: psycopg.Connection[Any], target: Target, lines: Sequence[dict[str, Any]]) -> None:
    fields = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type)) for column in target.columns
    )
    connection.execute(sql.SQL("CREATE TEMPORARY TABLE batch ({})").format(fields))
    with connection.cursor() as cursor, cursor.copy("COPY batch FROM STDIN") as copy:
        for line in lines:
            copy.write_row([line[column.name] for column in target.columns])
    connection.execute("batch".join(target.merge).encode())
    connection.execute("DROP TABLE batch")


def _move(connection: psycopg.Connection[Any], topology: Topology, client: dict[str, str], topic: str) -> None:
    admin = connect(client)
    for partition in admin.list_topics().topics[topic].partitions:
        found = identity(admin, topic, partition)
        connection.execute(
            "INSERT INTO onefold.batch (sink, topic, partition, topic_id, first_offset, next_offset, writer, landed_at)"
            " SELECT made.*, %s, clock_timestamp() FROM (SELECT %s::text, %s::text, %s::integer, %s::text, coalesce((SELECT"
            " next_offset FROM onefold.ledger WHERE sink = %s AND topic = %s AND partition = %s), 0), %s::bigint)"
            " AS made (s, t, p, i, first_offset, next_offset) WHERE first_offset < next_offset",
            (WRITER, *(topology.name, topic, partition, found.topic_id), *(topology.name, topic, partition), found.end),
        )
        connection.execute(
            "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp()) ON CONFLICT (sink, topic, partition) DO UPDATE"
            " SET next_offset = excluded.next_offset, updated_at = excluded.updated_at",
            (topology.name, topic, partition, found.end, found.topic_id, WRITER),
        )
