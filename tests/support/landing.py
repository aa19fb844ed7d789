"""Sinks on a real PostgreSQL without Kafka and Spark: the test supplies the batches."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from onefold.spark_sink.landing import land as landing
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import BatchRange, Contents, LastRecord, OffsetRange
from onefold.spark_sink.landing.staging_tables import Staged, StagingTables, open_stage
from onefold.spark_sink.postgres.connection import Connection, connect
from onefold.spark_sink.query_config import QueryConfig
from tests.support.made_up_domain import MadeUp
from tests.support.migrated import migrate_all

ID = "topic-id-1"
#: Difference between a record's timestamp in milliseconds and the offset.
SENT_MS = 1_700_000_000_000

Landed = Callable[[], tuple[int, list[tuple[int, int]]]]


class Sink:
    """A sink without Kafka and Spark, for batches of the test. The notes topic has one row per offset, with `id` = offset."""

    def __init__(self, dsn: str, plan: QueryConfig, writer: str = "one") -> None:
        self.connection: Connection = connect(dsn, writer)
        self.stage: StagingTables = open_stage(self.connection, plan.domain.targets)
        self._plan = plan
        self._writer = writer
        self.topic = next(topic for topic in plan.domain.contracts if topic.endswith("notes"))

    def batch(self, start: int, end: int, partition: int = 0, topic_id: str = ID) -> BatchRange:
        contents = Contents(end - start, SENT_MS + start)
        return BatchRange(
            self._plan.domain.name,
            self._writer,
            (OffsetRange(self.topic, partition, start, end, topic_id, LastRecord(end - 1, end), contents=contents),),
        )

    def rows(self, *offsets: int) -> Staged:
        return Staged(self.stage, self.table(*offsets))

    def table(self, *offsets: int, partition: int = 0) -> pa.Table:
        lines = [f'{offset},"note","{self.topic}",{partition},{offset}\n' for offset in offsets]
        many = len(offsets)
        columns = {
            "target": pa.array([self.topic] * many, pa.string()),
            "topic": pa.array([self.topic] * many, pa.string()),
            "partition": pa.array([partition] * many, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "fingerprint": pa.array(offsets, pa.int64()),
            "at_ms": pa.array([SENT_MS + offset for offset in offsets], pa.int64()),
            "line": pa.array(lines, pa.string()),
        }
        return pa.table(columns)

    def timeout_s(self, setting: str) -> float:
        """A timeout of the sink's session; infinite if off."""
        row = self.connection.execute(f"SELECT setting::int FROM pg_settings WHERE name = '{setting}'").fetchone()
        return row[0] / 1000 if row and row[0] else float("inf")

    def land(self, start: int, end: int, step: Callable[[str], None] = lambda name: None) -> bool:
        """Write one row per offset of [start, end)."""
        staged = self.rows(*range(start, end))
        return landing.land(self.connection, self.batch(start, end), staged, self._plan.domain.targets, step)


@pytest.fixture
def sink(plan: QueryConfig, database: str) -> Iterator[Sink]:
    """A sink with the ledger at offset 100."""
    migrate_all(database, plan.sql_root)
    one = Sink(database, plan)
    ledger.open_partition(one.connection, plan.domain.name, (one.topic, 0), 100, ID, "one")
    yield one
    one.connection.close()


@pytest.fixture
def other_sink(sink: Sink, plan: QueryConfig, database: str) -> Iterator[Sink]:
    """Another sink of the same pipeline."""
    two = Sink(database, plan, "two")
    yield two
    two.connection.close()


@pytest.fixture
def landed(made_up: MadeUp, reader: "psycopg.Connection[Any]") -> Callable[[], tuple[int, list[tuple[int, int]]]]:
    """The ledger's next offset, and (id, number of writes) of every row."""

    def look() -> tuple[int, list[tuple[int, int]]]:
        stored = reader.execute("SELECT next_offset FROM onefold.ledger").fetchone()
        rows = reader.execute(f"SELECT id, landings FROM {made_up.name}.notes ORDER BY id").fetchall()
        return (stored or (0,))[0], rows

    return look


def once(start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """Result of `landed` when every offset from `start` to `end` was written once."""
    return end, [(offset, 1) for offset in range(start, end)]
