"""Brings a batch's lines next to the tables, by the driver or by the executors; the merge is the same.

Driver staging, for small batches: the driver collects the lines and copies them into temporary tables, inside the
transaction that lands them. Executor staging: every task copies its lines into UNLOGGED tables over a connection of its
own and reports the ids of its transactions; the driver merges the rows of exactly the transactions reported, so that
rows of a task that failed or ran twice never count.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from onefold.error_codes import Code
from onefold.lineage import HEADER_BYTES, SINGLE_OBJECT
from onefold.spark_sink.contracts import REJECTED, Target
from onefold.spark_sink.errors import Rewind, may_blame_a_row
from onefold.spark_sink.landing.ledger import Contents, LastRecord, Partition
from onefold.spark_sink.postgres.connection import STAGING, Connection, connect, transaction

_SCHEMA = "onefold_stage"
_TABLE = re.compile(r"s(\d+)_\d+")
# Namespace of the advisory locks by which a sink shows that its staging tables are in use.
_STAGE_LOCK = 731_642_100
#: What a task reports, as Spark writes a schema.
REPORT = (
    "attempt string, target string, topic string, partition int, rows long, bytes long, last_offset long, fingerprint long,"
    " oldest_ms long"
)


# In the place of a task's transaction whose rows PostgreSQL refused: none has this id.
_REFUSED = "0"
# The value of a record that is set aside, in the CSV that `spark.read` makes: the only cell in hex.
_DIGITS = 2 * (HEADER_BYTES - len(SINGLE_OBJECT))
_HEADER = rf",\\x(?P<header>{SINGLE_OBJECT.hex().upper()}[0-9A-F]{{{_DIGITS}}})"


class Opened(NamedTuple):
    """A record that is set aside, whose value opens with such a header of Avro's single objects."""

    topic: str
    partition: int
    offset: int
    header: bytes


class Staged(Protocol):
    """A batch on its way: what `land` needs to know of it."""

    last_records: dict[Partition, LastRecord]
    contents: dict[Partition, Contents]
    targets: list[str]
    bytes: int
    """Of all lines."""
    rejected: int
    """Rows for REJECTED."""
    copied: bool
    """False: PostgreSQL has refused a row already, and `fill` would leave rows out."""

    def fill(self, connection: Connection) -> None:
        """Make `relation` readable, inside the landing transaction."""

    def relation(self, target: str) -> sql.Composable:
        """A SELECT over the staged rows of `target`."""

    def set_aside(self, connection: Connection) -> list[Opened]:
        """Of the records for REJECTED those that are Avro single objects of some kind, in order of their places."""


@dataclass(frozen=True)
class Stage:
    """The staging tables of one connection: temporary ones, and under `number` UNLOGGED ones for the executors.

    Of these there are two sets: one is filled while the other is merged. `side`, 0 or 1, says which is meant.
    """

    targets: Mapping[str, Target]
    number: int
    side: int = 0

    def other(self) -> "Stage":
        """The same with the other set for the executors."""
        return replace(self, side=1 - self.side)

    def temporary(self, target: str) -> sql.Identifier:
        """The temporary table of `target`."""
        return sql.Identifier("pg_temp", f"stage_{self._index(target)}")

    def unlogged(self, target: str) -> sql.Identifier:
        """The table that executors fill for `target`."""
        return sql.Identifier(_SCHEMA, f"s{self.number}_{self._index(target) + self.side * len(self.targets)}")

    def _index(self, target: str) -> int:
        return sorted(self.targets).index(target)


def open_stage(connection: Connection, targets: Mapping[str, Target]) -> Stage:
    """Staging tables for this connection, after those of dead sinks are dropped."""
    _drop_garbage(connection)
    stage = Stage(targets, secrets.randbits(31))
    with transaction(connection):
        connection.execute("SET LOCAL synchronous_commit = local")  # as `STAGING` has it
        _make(connection, stage)
    return stage


def _make(connection: Connection, stage: Stage) -> None:
    # Held by the session: it ends with the connection, whatever ends that. Shared: it excludes only the cleaner.
    connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", (_STAGE_LOCK, stage.number))
    for name, target in stage.targets.items():
        columns = _definitions(target)
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(stage.temporary(name), columns)
        )
        for side in (stage, stage.other()):
            # A row names the transaction that wrote it: that is the attempt.
            connection.execute(
                sql.SQL("CREATE UNLOGGED TABLE {} ({}, attempt xid8 NOT NULL DEFAULT pg_current_xact_id())").format(
                    side.unlogged(name), columns
                )
            )


def empty_unlogged(connection: Connection, stage: Stage) -> None:
    """Remove from the set of `stage` what an earlier batch has left there: it is merged, or of no use any more."""
    for name in stage.targets:
        connection.execute(sql.SQL("TRUNCATE {}").format(stage.unlogged(name)))


def _drop_garbage(connection: Connection) -> None:
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (_SCHEMA,)).fetchall()
    for (table,) in tables:
        match = _TABLE.fullmatch(table)
        if not match:
            continue
        with transaction(connection):
            connection.execute("SET LOCAL synchronous_commit = local")
            dead = connection.execute(
                "SELECT pg_try_advisory_xact_lock(%s, %s)", (_STAGE_LOCK, int(match[1]))
            ).fetchone()
            if dead and dead[0]:
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(_SCHEMA, table)))


def _definitions(target: Target) -> sql.Composable:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type)) for column in target.columns
    )


def _copy(connection: Connection, table: sql.Identifier, target: Target, lines: pa.ChunkedArray | pa.Array) -> None:
    """COPY lines that are CSV already: the Arrow buffers are the stream."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in target.columns)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for chunk in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
            copy.write(bytes_of(chunk))


def bytes_of(lines: pa.Array) -> memoryview:
    """The characters of a string array, one string after the other, without copying them."""
    _, offsets, data = lines.buffers()
    if data is None or len(lines) == 0:
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def by_target(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[str | None, pa.Table | pa.RecordBatch]]:
    """Rows without a target have no line: they only mark how far a partition goes."""
    names = pc.unique(rows["target"]).to_pylist()
    if len(names) == 1:
        yield names[0], rows  # the usual case of a pipeline with one table, and nothing to copy
        return
    for name in names:
        yield name, rows.filter(pc.is_null(rows["target"]) if name is None else pc.equal(rows["target"], name))


def _last_records(reports: Iterable[dict[str, Any]]) -> dict[Partition, LastRecord]:
    """The last record of each partition, of all that were reported. Rows that stand for a batch as a whole tell none."""
    last_records: dict[Partition, LastRecord] = {}
    for report in reports:
        if report["last_offset"] is not None:
            key, last = (report["topic"], report["partition"]), LastRecord(report["last_offset"], report["fingerprint"])
            last_records[key] = max(last, last_records.get(key, last), key=lambda candidate: candidate.offset)
    return last_records


def _contents(reports: Iterable[dict[str, Any]]) -> dict[Partition, Contents]:
    """How many records each partition has, and when the oldest was written. Marks stand for records that nobody counts."""
    found: dict[Partition, Contents] = {}
    for report in reports:
        if report["last_offset"] is not None:
            key = report["topic"], report["partition"]
            before = found.get(key, Contents(0, None))
            counted = before.records is not None and report["target"] is not None
            times = [at for at in (before.oldest_ms, report["oldest_ms"]) if at is not None]
            found[key] = Contents((before.records or 0) + report["rows"] if counted else None, min(times, default=None))
    return found


class DriverStaged:
    """Lines on the driver."""

    copied = True

    def __init__(self, stage: Stage, rows: pa.Table) -> None:
        self._stage = stage
        parts = dict(by_target(rows))
        self._lines = {name: part["line"] for name, part in parts.items() if name is not None}
        self._rejected = parts.get(REJECTED)
        reports = [report for name, part in parts.items() for report in _report("", name, part)]
        self.last_records, self.contents = _last_records(reports), _contents(reports)
        self.targets = sorted(self._lines)
        self.bytes = sum(lines.nbytes for lines in self._lines.values())
        self.rejected = 0 if self._rejected is None else self._rejected.num_rows

    def fill(self, connection: Connection) -> None:
        """COPY them all."""
        for name in self.targets:
            _copy(connection, self._stage.temporary(name), self._stage.targets[name], self._lines[name])

    def relation(self, target: str) -> sql.Composable:
        """The whole temporary table."""
        return sql.SQL("SELECT * FROM {}").format(self._stage.temporary(target))

    def set_aside(self, connection: Connection) -> list[Opened]:
        """By their lines; nothing is in Postgres yet."""
        if self._rejected is None:
            return []
        headers = pc.extract_regex(self._rejected["line"], _HEADER)
        rows = self._rejected.select(["topic", "partition", "offset"]).append_column("opened", headers)
        return sorted(
            Opened(row["topic"], row["partition"], row["offset"], bytes.fromhex(row["opened"]["header"]))
            for row in rows.filter(headers.is_valid()).to_pylist()
        )


class ExecutorStaged:
    """Lines that the executors have copied already, known by their reports."""

    def __init__(self, stage: Stage, reports: pa.Table) -> None:
        self._stage = stage
        self._rows: dict[str, int] = {}
        for report in reports.to_pylist():
            if report["target"] is not None:
                self._rows[report["target"]] = self._rows.get(report["target"], 0) + report["rows"]
        self.bytes = sum(reports["bytes"].to_pylist())
        self.rejected = self._rows.get(REJECTED, 0)
        self._attempts = sorted(set(reports["attempt"].to_pylist()), key=int)
        self.copied = _REFUSED not in self._attempts
        self.last_records, self.contents = _last_records(reports.to_pylist()), _contents(reports.to_pylist())
        self.targets = sorted(self._rows)

    def fill(self, connection: Connection) -> None:
        """Nothing to copy, but everything must still be there: Postgres empties UNLOGGED tables when it crashes."""
        for name in self.targets:
            count = sql.SQL("SELECT count(*) FROM ({}) AS staged").format(self.relation(name))
            row = connection.execute(count).fetchone()
            if row != (self._rows[name],):
                raise Rewind(
                    Code.POSITIONS_MOVED,
                    f"{row and row[0]} of {self._rows[name]} staged rows for {name} are left in Postgres",
                )

    def relation(self, target: str) -> sql.Composable:
        """The rows of the attempts that were reported, and of no others."""
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in self._stage.targets[target].columns)
        return sql.SQL("SELECT {} FROM {} WHERE attempt = ANY ({}::xid8[])").format(
            columns, self._stage.unlogged(target), sql.Literal(self._attempts)
        )

    def set_aside(self, connection: Connection) -> list[Opened]:
        """They are in Postgres."""
        if REJECTED not in self._rows:
            return []
        opened = sql.SQL(
            'SELECT topic, partition, "offset", substring(value FROM 1 FOR {}) FROM ({}) AS staged'
            " WHERE substring(value FROM 1 FOR {}) = {} AND length(value) >= {}"
        ).format(HEADER_BYTES, self.relation(REJECTED), len(SINGLE_OBJECT), SINGLE_OBJECT, HEADER_BYTES)
        return sorted(Opened(*row) for row in connection.execute(opened).fetchall())


def copy_as_attempt(batches: Iterable[pa.RecordBatch], stage: Stage, dsn: str, writer: str) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: copy each in a transaction, and report only after all have been committed.

    Not all in one: where no core is idle the next rows may come later than a session may be idle inside a transaction.
    """
    reports: list[dict[str, object]] = []
    connection = connect(dsn, writer, settings=STAGING)
    try:
        for batch in batches:
            attempt = _copied(connection, stage, batch)
            for name, part in by_target(batch):
                reports += _report(attempt, name, pa.table(part))
    finally:
        connection.close()
    if reports:
        yield pa.RecordBatch.from_pylist(reports, schema=report_schema())


def _copied(connection: Connection, stage: Stage, batch: pa.RecordBatch) -> str:
    """The id of the transaction that has copied `batch`; _REFUSED when PostgreSQL refuses a row of it."""
    try:
        with transaction(connection):
            attempt = str((connection.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",))[0])
            for name, part in by_target(batch):
                if name is not None:
                    _copy(connection, stage.unlogged(name), stage.targets[name], part["line"])
    except psycopg.Error as error:
        if connection.closed or not may_blame_a_row(error):
            raise
        return _REFUSED
    return attempt


def _report(attempt: str, target: str | None, rows: pa.Table) -> list[dict[str, Any]]:
    """How many rows of each partition, their share of the lines' bytes, and the last one. A partition is read by one task, in
    order."""
    counted = rows.group_by(["topic", "partition"], use_threads=False).aggregate(
        [("target", "count", pc.CountOptions("all")), ("offset", "last"), ("fingerprint", "last"), ("at_ms", "min")]
    )
    return [
        {
            "attempt": attempt,
            "target": target,
            "topic": row["topic"],
            "partition": row["partition"],
            "rows": row["target_count"],
            "bytes": rows["line"].nbytes * row["target_count"] // rows.num_rows,
            "last_offset": row["offset_last"],
            "fingerprint": row["fingerprint_last"],
            "oldest_ms": row["at_ms_min"],
        }
        for row in counted.to_pylist()
    ]


def report_schema() -> pa.Schema:
    """REPORT, as Arrow has it."""
    kinds = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in (field.split() for field in REPORT.split(", "))])
