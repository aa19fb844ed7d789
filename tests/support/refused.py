"""A sink for rows of the test, on a real PostgreSQL without Kafka and Spark, and reasons why PostgreSQL refuses rows."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from onefold.spark_sink.contracts import StagingColumn, Target, load_domain
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.batches import Batches
from onefold.spark_sink.landing.isolate import Bound
from onefold.spark_sink.landing.ledger import LastRecord, Partition
from onefold.spark_sink.landing.protocols import KafkaRecord, Reach
from onefold.spark_sink.landing.staging_tables import open_stage
from onefold.spark_sink.postgres.connection import connect
from onefold.spark_sink.query_config import QueryConfig
from onefold.spark_sink.threads import Threads
from tests.support.landing import ID, SENT_MS, Sink
from tests.support.made_up_domain import MadeUp, write_domain
from tests.support.migrated import migrate_all
from tests.support.told import Kept

Reader = psycopg.Connection[Any]
NOBODY = "127.0.0.1:9"  # port 9 accepts no connection


class Kafka:
    """Topics with records up to an offset."""

    def __init__(self, until: int = 1_000_000_000) -> None:
        self._until = until

    def ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, ID)

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        return {(topic, 0): Reach(0, self._until) for topic in topics}

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        here = offset if offset < self._until else offset + 1
        return KafkaRecord(here, None, f"value {here}".encode(), 0)

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        return last.fingerprint

    def is_compacted(self, topic: str) -> bool:
        return False


class Rows:
    """Rows as Spark would give them. A record without a line is reduced: its `summand` is added to others of the same key.

    Attributes:
        read: number of bytes read by the driver, for each read.
    """

    def __init__(self, table: pa.Table, read: list[int]) -> None:
        self._table = table
        self.read = read

    @contextmanager
    def held(self, offsets: int, reread: bool) -> Iterator[Self]:
        yield self

    def within(self, spans: Mapping[Partition, range], offsets: int) -> "Rows":
        rows = self._table.to_pylist()
        left = [row for row in rows if row["offset"] in spans.get((row["topic"], row["partition"]), ())]
        return Rows(pa.Table.from_pylist(left, schema=self._table.schema), self.read)

    def only(self, records: Sequence[tuple[str, int, int]]) -> "Rows":
        left = [row for row in self._table.to_pylist() if (row["topic"], row["partition"], row["offset"]) in records]
        return Rows(pa.Table.from_pylist(left, schema=self._table.schema), self.read)

    def bytes(self) -> int:
        return sum(len(line or "") for line in self._table["line"].to_pylist())

    def reduced_places(self) -> pa.Table:
        columns = ["topic", "partition", "offset", "at_ms"]
        reduced = self._table.filter(pc.is_null(self._table["line"]))
        reads = [OTHER if row.get("key") == OTHER else row["topic"] for row in reduced.to_pylist()]
        return reduced.select(columns).append_column("reads", pa.array(reads, pa.string()))

    def to_arrow(self) -> pa.Table:
        self.read.append(self.bytes())
        if "summand" not in self._table.column_names:
            return self._table
        sums: dict[str, list[str]] = {}
        for row in self._table.to_pylist():
            if row["line"] is None and row["key"] != OTHER:
                sums.setdefault(row["key"], []).append(row["summand"])
        made = [{"target": SUMS, "line": f"{key},{_sum(summands)}\n"} for key, summands in sums.items()]
        plain = self._table.drop_columns(["key", "summand"])
        return pa.concat_tables([plain, pa.Table.from_pylist(made, schema=plain.schema)])


#: Target of the query over the invented readings: a sum for each key.
SUMS = "sums"
#: Key of records that another query reads, as if from another topic, without a result.
OTHER = "other"


def _sum(summands: Sequence[str]) -> str:
    """Add up as Spark does unless configured to fail: the first summand that is no number becomes the result."""
    return next((one for one in summands if not one.lstrip("-").isdigit()), None) or str(sum(map(int, summands)))


def summed(plan: QueryConfig) -> QueryConfig:
    """The invented pipeline with reduced readings."""
    merge = (
        f"INSERT INTO {plan.domain.name}.sums AS stored (key, total) SELECT key, total FROM ",
        " AS stage ORDER BY key ON CONFLICT (key) DO UPDATE SET total = stored.total + excluded.total",
    )
    target = Target(
        SUMS,
        (StagingColumn("key", "text"), StagingColumn("total", "bigint")),
        merge,
        reduced=True,
        reads=f"{plan.domain.name}.readings",
    )
    left = {name: one for name, one in plan.domain.targets.items() if not name.endswith("readings")}
    return replace(plan, domain=replace(plan.domain, targets={**left, SUMS: target}))


class Pipeline:
    """Notes of the invented pipeline as rows (id, text), at offsets from 100 on."""

    def __init__(self, sink: Sink, plan: QueryConfig, dsn: str, reader: Reader, kafka: Kafka | None = None) -> None:
        self.sink, self.dsn, self.reader = sink, dsn, reader
        self.told = Kept()
        self.plan = replace(plan, telemetry=self.told)
        self.kafka = kafka or Kafka()
        self.bound = Bound()
        self.read: list[int] = []
        self.next = {(topic, partition): 100 for topic in plan.domain.contracts for partition in (0, 1)}
        for key in self.next:
            ledger.open_partition(sink.connection, plan.domain.name, key, 100, ID, "one")

    def lands(
        self, *rows: tuple[str, str], topic: str = "", partition: int = 0, late_ms: int = 0
    ) -> BaseException | None:
        """Write one batch of one partition; return the failure. `rows`: the record's cells as CSV, and the target ("": the
        topic)."""
        return self.lands_table(self.table(*rows, topic=topic, partition=partition, late_ms=late_ms))

    def table(self, *rows: tuple[str, str], topic: str = "", partition: int = 0, late_ms: int = 0) -> pa.Table:
        """Build a batch. `late_ms`: delay of the timestamps relative to the offsets."""
        topic = topic or self.sink.topic
        first = self.next[topic, partition]
        made = [
            {
                "target": target or topic,
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "fingerprint": offset,
                "at_ms": SENT_MS + offset + late_ms,
                "line": f"{cells},{topic},{partition},{offset}\n",
            }
            for offset, (cells, target) in enumerate(rows, first)
        ]
        return pa.Table.from_pylist(made, schema=self.sink.table(100).schema)

    def adds(self, *summands: tuple[str, str], partition: int = 0, late_ms: int = 0) -> pa.Table:
        """Build records to reduce, each (key, number)."""
        topic = next(name for name in self.plan.domain.contracts if name.endswith("readings"))
        first = self.next[topic, partition]
        made = [
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "fingerprint": offset,
                "at_ms": SENT_MS + offset + late_ms,
                "key": key,
                "summand": number,
            }
            for offset, (key, number) in enumerate(summands, first)
        ]
        fields = [pa.field("key", pa.string()), pa.field("summand", pa.string())]
        return pa.Table.from_pylist(made, schema=pa.schema([*self.sink.table(100).schema, *fields]))

    def sums(self) -> dict[str, int]:
        return dict(self.reader.execute(f"SELECT key, total FROM {self.plan.domain.name}.sums").fetchall())

    def lands_table(self, table: pa.Table) -> BaseException | None:
        ends = dict(self.next)
        for row in table.to_pylist():
            key = row["topic"], row["partition"]
            ends[key] = max(ends[key], row["offset"] + 1)
        one = Batches(
            self.plan, self.sink.connection, self.sink.connection, self.kafka, self.sink.stage, self.next,
            dict.fromkeys(self.plan.domain.contracts, ID), lambda number: ends, Threads(), self.bound,
        )  # fmt: skip
        with suppress(RuntimeError):
            one.on_batch(Rows(table, self.read), 0)
        one.close()
        if str(one.failure) == "the writer has ended":
            self.next = ends
            return None
        return one.failure

    def becomes_role(self) -> None:
        """From now on the sink's session uses a role that is no superuser."""
        name = self.plan.domain.name
        self.reader.execute(
            f"CREATE ROLE {name}; GRANT ALL ON SCHEMA {name}, onefold TO {name};"
            f"GRANT ALL ON ALL TABLES IN SCHEMA {name}, onefold TO {name}"
        )
        self.sink.connection.close()
        self.sink.connection = connect(self.dsn, "one")
        self.sink.connection.execute(f"SET ROLE {name}")
        self.sink.stage = open_stage(self.sink.connection, self.plan.domain.targets)

    def notes(self) -> list[tuple[Any, ...]]:
        return self.reader.execute(f"SELECT id, text FROM {self.plan.domain.name}.notes ORDER BY id").fetchall()

    def rejected(self) -> list[tuple[Any, ...]]:
        asked = 'SELECT partition, "offset", reason FROM onefold.rejected ORDER BY topic, partition, "offset"'
        return self.reader.execute(asked).fetchall()

    def places(self) -> list[tuple[int, int]]:
        return [row[:2] for row in self.rejected()]


def note(number: int, text: str = "x") -> tuple[str, str]:
    return f'{number},"{text}"', ""


def raising(state: str) -> str:
    return f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}';"


def trigger(body: str, kind: str = "BEFORE INSERT OR UPDATE") -> str:
    """Statements of a trigger for rows with the id 101."""
    return (
        f"CREATE FUNCTION {{name}}.look() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ DECLARE n integer; BEGIN IF NEW.id = 101 THEN {body} END IF; RETURN NEW; END $$;"
        f"CREATE TRIGGER look {kind} ON {{name}}.notes FOR EACH ROW EXECUTE FUNCTION {{name}}.look();"
    )


LATER = "CREATE CONSTRAINT TRIGGER look AFTER INSERT ON {name}.notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
#: By reason to refuse a note with the id 101: the statements that cause the refusal, and the SQLSTATE.
ONE_ROW = {
    "54000 index entry": ("CREATE INDEX ON {name}.notes (text)", "54000"),
    "P0001 trigger": (trigger("RAISE EXCEPTION 'not this one';"), "P0001"),
    "P0002 trigger": (trigger("SELECT 1 INTO STRICT n FROM pg_class WHERE oid = 0;"), "P0002"),
    "P0004 assert": (trigger("ASSERT false;"), "P0004"),
    "20000 case": (trigger("CASE NEW.id WHEN 1 THEN n := 1; END CASE;"), "20000"),
    "22012 division": (trigger("n := 1 / (NEW.id - 101);"), "22012"),
    "2201E logarithm": (trigger("n := ln(101 - NEW.id);"), "2201E"),
    "0A000 raised": (trigger(raising("0A000")), "0A000"),
    "42501 raised": (trigger(raising("42501")), "42501"),
    "42704 raised": (trigger(raising("42704")), "42704"),
    "55000 raised": (trigger(raising("55000")), "55000"),
    "38000 raised": (trigger(raising("38000")), "38000"),
    "XX000 raised": (trigger(raising("XX000")), "XX000"),
    "own state": (trigger(raising("MY001")), "MY001"),
    "42P01 dynamic": (trigger("EXECUTE 'INSERT INTO nowhere_' || NEW.id || ' SELECT 1';"), "42P01"),
    "42501 policy": (
        ("ALTER TABLE {name}.notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
        "CREATE POLICY look ON {name}.notes USING (true) WITH CHECK (id <> 101)"),
        "42501",
    ),
    "44000 check option": (
        ("ALTER TABLE {name}.notes RENAME TO stored;"
        "CREATE VIEW {name}.notes AS SELECT * FROM {name}.stored WHERE id <> 101 WITH CHECK OPTION"),
        "44000",
    ),
    "23514 check": ("ALTER TABLE {name}.notes ADD CHECK (id <> 101)", "23514"),
    "23503 reference": (
        ("CREATE TABLE {name}.known (id bigint PRIMARY KEY); INSERT INTO {name}.known SELECT generate_series(100, 200);"
        "DELETE FROM {name}.known WHERE id = 101;"
        "ALTER TABLE {name}.notes ADD FOREIGN KEY (id) REFERENCES {name}.known"),
        "23503",
    ),
    "23514 no partition": (
        ("ALTER TABLE {name}.notes RENAME TO old; CREATE TABLE {name}.notes (LIKE {name}.old INCLUDING ALL)"
        " PARTITION BY RANGE (id); CREATE TABLE {name}.low PARTITION OF {name}.notes FOR VALUES FROM (0) TO (101);"
        "CREATE TABLE {name}.high PARTITION OF {name}.notes FOR VALUES FROM (102) TO (1000)"),
        "23514",
    ),
    "23503 deferred reference": (
        ("CREATE TABLE {name}.known (id bigint PRIMARY KEY); INSERT INTO {name}.known SELECT generate_series(100, 200);"
        "DELETE FROM {name}.known WHERE id = 101;"
        "ALTER TABLE {name}.notes ADD FOREIGN KEY (id) REFERENCES {name}.known DEFERRABLE INITIALLY DEFERRED"),
        "23503",
    ),
    "P0001 deferred trigger": (
        trigger("RAISE EXCEPTION 'too late';").replace(
            "CREATE TRIGGER look BEFORE INSERT OR UPDATE ON {name}.notes FOR EACH ROW", LATER
        ),
        "P0001",
    ),
}  # fmt: skip


def domain_in(folder: Path, checkout: Path) -> MadeUp:
    """An invented pipeline with a unique name, without Kafka."""
    name = f"t{uuid.uuid4().hex[:10]}"
    write_domain(folder, checkout, name)
    return MadeUp(name, folder, NOBODY)


def plan_of(made_up: MadeUp, dsn: str) -> QueryConfig:
    """The plan of the pipeline, with tables created in the database."""
    migrate_all(dsn, made_up.root / "sql")
    return QueryConfig(
        domain=load_domain(made_up.name, made_up.root / "avro", made_up.root / "sql"),
        java_options={},
        postgres_dsn=dsn, writer="test", sql_root=made_up.root / "sql",
        checkpoint_root=made_up.root, step=lambda name: None,
    )  # fmt: skip


def emptied(plan: QueryConfig, made_up: MadeUp, reader: Reader) -> Pipeline:
    """A sink with empty tables and an empty ledger."""
    reader.execute(f"DROP SCHEMA {made_up.name} CASCADE")
    reader.execute((made_up.root / f"sql/schema/{made_up.name}.01.sql").read_bytes())
    reader.execute("TRUNCATE onefold.ledger, onefold.rejected, onefold.batch")
    return Pipeline(Sink(plan.postgres_dsn, plan), plan, plan.postgres_dsn, reader)
