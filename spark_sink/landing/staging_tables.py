"""The lines of a batch on the driver, and the temporary tables for the merge into the target tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from onefold.schema_history import HEADER_BYTES, SINGLE_OBJECT
from onefold.spark_sink.contracts import REJECTED, Target
from onefold.spark_sink.landing.ledger import Contents, LastRecord, Partition
from onefold.spark_sink.postgres.connection import Connection, transaction

# Earlier versions of the sink have UNLOGGED staging tables in this schema, and hold an advisory lock with the tables' number.
# After the end of such a sink, its tables remain.
_DROP_OLD_STAGES = r"""
DO $$
DECLARE
    old text;
BEGIN
    FOR old IN SELECT tablename FROM pg_tables
        WHERE schemaname = 'onefold_stage' AND tablename ~ '^s\d+_\d+$' AND pg_has_role(tableowner, 'USAGE')
    LOOP
        IF pg_try_advisory_xact_lock(731642100, substring(old FROM 's(\d+)')::integer) THEN
            EXECUTE format('DROP TABLE IF EXISTS onefold_stage.%I', old);
        END IF;
    END LOOP;
END
$$
"""
# The value of a rejected record in the CSV of `spark.read`. No other cell is in hex.
_DIGITS = 2 * (HEADER_BYTES - len(SINGLE_OBJECT))
_HEADER = rf",\\x(?P<header>{SINGLE_OBJECT.hex().upper()}[0-9A-F]{{{_DIGITS}}})"


class Opened(NamedTuple):
    """A rejected record with the `header` of its value in Avro's single-object encoding."""

    topic: str
    partition: int
    offset: int
    header: bytes


@dataclass(frozen=True)
class StagingTables:
    """The temporary tables of one connection, empty outside of a transaction."""

    targets: Mapping[str, Target]

    def table(self, target: str) -> sql.Identifier:
        """The table for the lines of `target`."""
        return sql.Identifier("pg_temp", f"stage_{sorted(self.targets).index(target)}")


def open_stage(connection: Connection, targets: Mapping[str, Target]) -> StagingTables:
    """Create the temporary tables for this connection."""
    stage = StagingTables(targets)
    with transaction(connection):
        # Temporary tables need not survive a crash of the server, so the COMMIT need not wait for a standby.
        connection.execute("SET LOCAL synchronous_commit = local")
        connection.execute(_DROP_OLD_STAGES)
        for name, target in targets.items():
            create = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS")
            connection.execute(create.format(stage.table(name), _definitions(target)))
    return stage


def _definitions(target: Target) -> sql.Composable:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type)) for column in target.columns
    )


def _copy(connection: Connection, table: sql.Identifier, target: Target, lines: pa.ChunkedArray) -> None:
    """COPY lines of CSV from the Arrow buffers without conversion."""
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in target.columns)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for chunk in lines.chunks:
            copy.write(bytes_of(chunk))


def bytes_of(lines: pa.Array) -> memoryview:
    """The concatenated bytes of a string array, without copying."""
    _, offsets, data = lines.buffers()
    if data is None or len(lines) == 0:
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def by(rows: pa.Table, column: str) -> dict[str, pa.Table]:
    """Group the rows by the text in a column, without rows of null."""
    names = pc.unique(rows[column]).to_pylist()
    if len(names) == 1:  # usual for a pipeline with one table; saves a copy of the rows
        return {name: rows for name in names if name is not None}
    return {name: rows.filter(pc.equal(rows[column], name)) for name in names if name is not None}


class Staged:
    """The lines of a batch, on the driver.

    Attributes:
        targets: the targets with lines, sorted.
        counts: the number of lines by target.
        bytes: the size of all lines.
        rejected: the number of lines for REJECTED.
        last_records: the last record by partition.
        contents: the number of records and the oldest timestamp, by partition.
    """

    def __init__(self, stage: StagingTables, rows: pa.Table) -> None:
        self._stage = stage
        parts = by(rows, "target")
        self._lines = {name: part["line"] for name, part in parts.items()}
        self._rejected = parts.get(REJECTED)
        self.targets = sorted(self._lines)
        self.counts = {name: len(lines) for name, lines in self._lines.items()}
        self.bytes = sum(lines.nbytes for lines in self._lines.values())
        self.rejected = self.counts.get(REJECTED, 0)
        self.last_records: dict[Partition, LastRecord] = {}
        self.contents: dict[Partition, Contents] = {}
        self._look_at(rows)

    def _look_at(self, rows: pa.Table) -> None:
        """Find the last record and the contents of each partition. One task reads a partition, so its rows are in order."""
        found = rows.group_by(["target", "topic", "partition"], use_threads=False).aggregate(
            [("offset", "count"), ("offset", "last"), ("fingerprint", "last"), ("at_ms", "min")]
        )
        for row in found.to_pylist():
            if row["offset_last"] is None:
                continue  # rows of a reduction represent the whole batch
            key, last = (row["topic"], row["partition"]), LastRecord(row["offset_last"], row["fingerprint_last"])
            self.last_records[key] = max(last, self.last_records.get(key, last), key=lambda record: record.offset)
            before = self.contents.get(key, Contents(0, None))
            # A row without a target represents reduced records of unknown number.
            counted = before.records is not None and row["target"] is not None
            times = [at for at in (before.oldest_ms, row["at_ms_min"]) if at is not None]
            records = (before.records or 0) + row["offset_count"] if counted else None
            self.contents[key] = Contents(records, min(times, default=None))

    def fill(self, connection: Connection) -> None:
        """COPY the lines into the temporary tables, inside the transaction that merges them."""
        for name in self.targets:
            _copy(connection, self._stage.table(name), self._stage.targets[name], self._lines[name])

    def relation(self, target: str) -> sql.Composable:
        """A SELECT over the staged rows of `target`."""
        return sql.SQL("SELECT * FROM {}").format(self._stage.table(target))

    def set_aside(self) -> list[Opened]:
        """The rejected records with a header of Avro's single-object encoding, in order of topic, partition and offset."""
        if self._rejected is None:
            return []
        headers = pc.extract_regex(self._rejected["line"], _HEADER)
        rows = self._rejected.select(["topic", "partition", "offset"]).append_column("opened", headers)
        return sorted(
            Opened(row["topic"], row["partition"], row["offset"], bytes.fromhex(row["opened"]["header"]))
            for row in rows.filter(headers.is_valid()).to_pylist()
        )
