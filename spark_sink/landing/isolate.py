"""Isolates the poison rows of a batch refused by PostgreSQL: rejects these rows with the reason, and writes all other rows.

PostgreSQL's error does not identify the row. The sink therefore bisects the rows in the order of writing. The sink merges each
half in addition to the rows merged before, and rolls a refused half back to its savepoint. A single refused row is poison.

Rows of a reduction represent all records of the batch together. The sink bisects the records instead, and reduces and merges
each half separately. All steps run in the transaction of the batch, under the locks of the ledger.
"""

import csv
import io
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from onefold.error_codes import Code
from onefold.spark_sink.contracts import REJECTED, Target
from onefold.spark_sink.errors import Stopped, blames_a_row, may_blame_a_row, sentence
from onefold.spark_sink.landing.land import merge
from onefold.spark_sink.landing.protocols import BatchRows, Records
from onefold.spark_sink.landing.staging_tables import Staged, StagingTables, by
from onefold.spark_sink.postgres.connection import Connection, awake
from onefold.spark_sink.query_config import MAX_OFFSETS_PER_BATCH

# The maximum number of refused rows of a table in one batch: REFUSED_MAX, or REFUSED_SHARE of the rows if greater. With more
# refused rows, the table or the merge is wrong, and rejecting the rows would hide the fault.
REFUSED_MAX = 100
REFUSED_SHARE = 0.01
# The upper limit of the share, because each refused row costs about twenty statements in a transaction that blocks other sinks.
# With a lower limit, rows that small batches had rejected would permanently block the large batches of a backlog or a rebuild.
REFUSED_MOST = int(MAX_OFFSETS_PER_BATCH * REFUSED_SHARE)
# The maximum number of offsets in a part of a batch with reductions. The sink splits larger batches. In a part, PostgreSQL may
# refuse REFUSED_MAX reduced records, the same share as of rows. Each refused record costs about twenty Spark jobs.
REDUCED_OFFSETS = int(REFUSED_MAX / REFUSED_SHARE)
# For consecutive small batches: if PostgreSQL refuses at least this share of each batch, all their refused rows count together.
_RUN_SHARE = 0.1
# The number of lines in Python's memory at a time.
_COPIED_LINES = 1_000


@dataclass
class Bound:
    """The limit of rejected rows of a pipeline. The counts persist across restarts of the query, because a restart must not
    allow more rejected rows for a faulty table.

    Attributes:
        runs: by table, the number of refused rows in the last consecutive batches with a large share of refused rows.
        rows, refused: by table, the number of rows and of refused rows in the committed parts of a batch; empty after the last
            part.
    """

    runs: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def most(self, rows: int) -> int:
        """The maximum number of refused rows in a batch of `rows` rows."""
        return max(REFUSED_MAX, min(REFUSED_MOST, int(rows * REFUSED_SHARE)))

    def run(self, table: str, rows: int, refused: int) -> int:
        """The number of refused rows in consecutive batches with a large share of refused rows, including this batch."""
        return self.runs[table] + refused if refused >= rows * _RUN_SHARE else 0

    def landed(self, rows: Mapping[str, int], refused: Mapping[str, int]) -> None:
        """Count a committed batch or part: the rows by table, and the refused rows by table."""
        for table, count in rows.items():
            self.runs[table] = self.run(table, count, refused.get(table, 0))
        self.rows.update(rows)
        self.refused.update(refused)

    def end_batch(self) -> None:
        """Reset the counts of parts after the last part of a batch."""
        self.rows.clear()
        self.refused.clear()


class _Row(NamedTuple):
    """A row of the batch, with its number among the target's rows, or a reduced record.

    `target` of a reduced record is the topic, and after a refusal the refusing table.
    """

    target: str
    number: int
    origin: tuple[str, int, int]


class Sifted(Staged):
    """A batch refused by PostgreSQL as a whole. `fill` merges the accepted rows, and stages the refused rows for REJECTED.

    Attributes:
        refused: after `fill`, the number of refused rows by table.
        reason: the error of the first refused row.
        written: the number of rows changed by the merges.
    """

    def __init__(
        self,
        sink: str,
        stage: StagingTables,
        rows: BatchRows,
        targets: Mapping[str, Target],
        records: Records,
        bound: Bound,
    ) -> None:
        read = rows.to_arrow()
        super().__init__(stage, read)
        self._sink, self._all_targets, self._records, self._bound = sink, targets, records, bound
        self._source = rows
        self._parts = by(read, "target")
        self._reduced = [name for name in sorted(targets) if targets[name].reduced]
        self._reduced_rows = in_order(by(rows.reduced_places(), "reads")) if self._reduced else []
        self._merging = ""  # the current target in a merge of reduced rows
        self._single = [name for name in sorted(self._parts) if name != REJECTED and not targets[name].reduced]
        self._rows = in_order({name: self._parts[name] for name in self._single})
        self._numbers: dict[str, list[int]] = {name: [] for name in self._single}
        for number, row in enumerate(self._rows):
            self._numbers[row.target].append(number)
        self.refused: Counter[str] = Counter()
        self.reason = ""
        self.written = 0

    @property
    def counted(self) -> dict[str, int]:
        """The number of rows in the batch by table. For a reduction, the number of records of its topic."""
        records = Counter(row.target for row in self._reduced_rows)
        reduced = {name: records[self._all_targets[name].reads] for name in self._reduced}
        return {**reduced, **{name: len(numbers) for name, numbers in self._numbers.items()}}

    def fill(self, connection: Connection) -> None:
        """Merge all rows accepted by PostgreSQL, and stage the refused rows for REJECTED.

        Raises:
            Stopped: PostgreSQL refuses too many rows, or the rows of a query over no records.
            psycopg.Error: no row is the cause.
        """
        self.written, self.reason = 0, ""
        refused = [*self._refused(connection)]
        lines = [*self._set_aside_lines(connection, refused)]
        kept = [self._parts[REJECTED]["line"].combine_chunks()] if REJECTED in self._parts else []
        self._lines = {REJECTED: pa.chunked_array([*kept, pa.array(lines, pa.string())])}
        self.targets = [REJECTED] if kept or lines else []
        self.rejected = sum(map(len, self._lines.values()))
        super().fill(connection)

    def _refused(self, connection: Connection) -> Iterator[tuple[_Row, psycopg.Error]]:
        """Yield the refused rows, each with the error, and merge all other rows."""
        self.refused.clear()
        doubtful: dict[str, psycopg.Error] = {}
        for find in (self._uncopied, self._unmerged, self._unreduced):
            for row, error in find(connection):
                self.refused[row.target] += 1
                self.reason = self.reason or sentence(error)
                self._stop_beyond_the_bound(row.target, error)
                if not blames_a_row(error):
                    doubtful[row.target] = error
                yield row, error
        for table, error in doubtful.items():
            if self.refused[table] == self.counted[table]:
                raise Stopped(
                    Code.ROWS_REFUSED,
                    f"PostgreSQL refuses every row of a batch for {table}: {sentence(error)}. The sink wrote none of these rows",
                ) from error

    def _stop_beyond_the_bound(self, table: str, error: psycopg.Error) -> None:
        rows, refused = self.counted[table], self.refused[table]
        most, of, so_far = REFUSED_MAX, rows, refused
        if table not in self._reduced or refused <= REFUSED_MAX:
            of, so_far = rows + self._bound.rows[table], refused + self._bound.refused[table]
            most = self._bound.most(of)
        if so_far <= most and self._bound.run(table, rows, refused) <= REFUSED_MAX:
            return
        what = "records" if table in self._reduced else "rows"
        here, before = f"more than {most:,} of {of:,} {what} in one batch", ""
        if so_far <= most:
            here = f"{refused:,} of {rows:,} {what}"
            before = f", after {self._bound.runs[table]:,} in the batches before"
        raise Stopped(
            Code.ROWS_REFUSED,
            f"PostgreSQL refuses {here} for {table}{before}: {sentence(error)}. The sink wrote none of these {what}: mend the "
            f"table or sql/merge/{table}.sql",
        ) from error

    def _uncopied(self, connection: Connection) -> Iterator[tuple[_Row, psycopg.Error]]:
        """Copy the rows with their numbers into separate tables. Yields each row with a value not valid for the column."""
        for name in self._single:
            numbers, columns = self._numbers[name], sql.SQL(", ").join(self._columns(name))
            connection.execute(
                sql.SQL(
                    "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT 0::bigint AS {}, {} FROM {} LIMIT 0"
                ).format(self._table(name), _NUMBER, columns, self._stage.table(name))
            )
            connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(self._table(name), _NUMBER))
            for at, error in _halve(connection, len(numbers), partial(self._copy, connection, name)):
                yield self._rows[numbers[at]], error

    def _copy(self, connection: Connection, name: str, start: int, end: int) -> None:
        """Copy the rows of a target with indexes in [start, end), in order."""
        columns = sql.SQL(", ").join([_NUMBER, *self._columns(name)])
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(self._table(name), columns)
        with connection.cursor() as cursor, cursor.copy(statement) as copied:
            for first in range(start, end, _COPIED_LINES):
                some = self._numbers[name][first : min(end, first + _COPIED_LINES)]
                lines = self._parts[name]["line"].take([self._rows[number].number for number in some]).to_pylist()
                copied.write("".join(f"{number},{line}" for number, line in zip(some, lines, strict=True)))

    def _columns(self, name: str) -> list[sql.Identifier]:
        return [sql.Identifier(column.name) for column in self._all_targets[name].columns]

    def _unmerged(self, connection: Connection) -> Iterator[tuple[_Row, psycopg.Error]]:
        """Merge the copied rows in order. Yields each row refused after the merge of the rows before."""

        def apply(start: int, end: int) -> None:
            # PostgreSQL checks a deferred constraint at the end of a transaction. Check it here at the end of a part.
            connection.execute("SET CONSTRAINTS ALL DEFERRED")
            changed = 0
            for name in self._single:
                numbers = self._numbers[name]
                if bisect_left(numbers, start) < bisect_left(numbers, end):
                    changed += self._merge(connection, name, self._numbered(name, start, end))
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self.written += changed

        for number, error in _halve(connection, len(self._rows), apply):
            yield self._rows[number], error

    def _unreduced(self, connection: Connection) -> Iterator[tuple[_Row, psycopg.Error]]:
        """Merge the reduced rows of the records. Yields each record refused after the merge of the records before."""
        count = len(self._reduced_rows)
        if not count:
            self._apply_to_none(connection, self._parts)

        def apply(start: int, end: int) -> None:
            parts = self._parts
            if end - start < count:
                parts = self._reduce(connection, [row.origin for row in self._reduced_rows[start:end]])
            self._apply_reduced(connection, parts)

        for number, error in _halve(connection, count, apply):
            row = _Row(self._merging, number, self._reduced_rows[number].origin)
            if not any(self.refused[name] for name in self._reduced):
                self._try_with_none(connection)
            yield row, error

    def _reduce(self, connection: Connection, records: Sequence[tuple[str, int, int]]) -> dict[str, pa.Table]:
        """Run the queries in Spark over the given records only."""
        with awake(connection):
            return by(self._source.only(records).to_arrow(), "target")

    def _try_with_none(self, connection: Connection) -> None:
        """Raise `Stopped` if PostgreSQL also refuses the rows of the queries over no records: then no record is the cause.

        Changes nothing.
        """
        parts, written = self._reduce(connection, []), self.written
        if parts.keys() & self._reduced:
            connection.execute("SAVEPOINT none")
            self._apply_to_none(connection, parts)
            connection.execute("ROLLBACK TO SAVEPOINT none; RELEASE SAVEPOINT none")
            self.written = written

    def _apply_to_none(self, connection: Connection, parts: Mapping[str, pa.Table]) -> None:
        """Merge the rows of the queries over no records, for example of an aggregate without GROUP BY.

        Raises:
            Stopped: PostgreSQL refuses the rows.
        """
        try:
            self._apply_reduced(connection, parts)
        except psycopg.Error as error:
            if connection.closed or not may_blame_a_row(error):
                raise
            raise Stopped(
                Code.ROWS_REFUSED,
                f"PostgreSQL refuses what sql/reduce/{self._merging}.sql makes of a batch without records: {sentence(error)}. "
                f"The sink wrote none of these rows: mend the table or sql/merge/{self._merging}.sql",
            ) from error

    def _apply_reduced(self, connection: Connection, parts: Mapping[str, pa.Table]) -> None:
        # A deferred constraint may span two of the tables. The merge before has left all constraints immediate.
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        changed = 0
        for name in self._reduced:
            if name in parts:
                self._merging = name
                staged = Staged(self._stage, parts[name])
                staged.fill(connection)
                changed += self._merge(connection, name, staged.relation(name))
                connection.execute(sql.SQL("TRUNCATE {}").format(self._stage.table(name)))
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        self.written += changed

    def _merge(self, connection: Connection, name: str, relation: sql.Composable) -> int:
        done = connection.execute(merge(self._all_targets[name], sql.SQL("({})").format(relation)))
        return max(0, done.rowcount)

    def _numbered(self, name: str, start: int, end: int) -> sql.Composable:
        columns = sql.SQL(", ").join(self._columns(name))
        return sql.SQL("SELECT {} FROM {} WHERE {} >= {} AND {} < {}").format(
            columns, self._table(name), _NUMBER, sql.Literal(start), _NUMBER, sql.Literal(end)
        )

    def _table(self, name: str) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"sifted_{self._single.index(name)}")

    def _set_aside_lines(self, connection: Connection, refused: Iterable[tuple[_Row, psycopg.Error]]) -> Iterator[str]:
        for row, error in refused:
            # Reading many records from Kafka may take long, and the server ends an idle session inside a transaction.
            connection.execute("SELECT 1")
            topic, partition, offset = row.origin
            record = self._records.record_from(topic, partition, offset)
            value = (record.value if record and record.offset == offset else None) or b""
            reason = f"Postgres refused the row: {sentence(error)}"
            yield _line(self._sink, reason, "\\x" + value.hex(), topic, partition, offset)


# No field of a schema has a name with a space.
_NUMBER = sql.Identifier("onefold number")


def in_order(parts: Mapping[str, pa.Table]) -> list[_Row]:
    """The rows of all tables in the order of writing: by offset within a partition, and by timestamp between partitions.

    Within a partition, a timestamp before an earlier record's timestamp counts as the earlier record's timestamp.
    """
    found: list[tuple[int, _Row]] = []
    for name, part in parts.items():
        columns = [part[column].to_pylist() for column in ("topic", "partition", "offset", "at_ms")]
        for number, (*origin, at_ms) in enumerate(zip(*columns, strict=True)):
            found.append((at_ms or 0, _Row(name, number, (origin[0], origin[1], origin[2]))))
    latest: dict[tuple[str, int], int] = {}
    keyed = []
    for at_ms, row in sorted(found, key=lambda one: one[1].origin):
        place = row.origin[:2]
        latest[place] = written = max(at_ms, latest.get(place, 0))
        keyed.append(((written, *row.origin), row))
    return [row for _, row in sorted(keyed, key=lambda one: one[0])]


def _halve(
    connection: Connection, count: int, attempt: Callable[[int, int], None]
) -> Iterator[tuple[int, psycopg.Error]]:
    """Bisect [0, count) with `attempt`, in order. Yields each number for which PostgreSQL refuses a single-row attempt."""
    open_ranges = [(0, count)] if count else []
    while open_ranges:
        start, end = open_ranges.pop()
        error = _try(connection, start, end, attempt)
        if error is None:
            continue
        if end - start > 1:
            middle = (start + end) // 2
            open_ranges += [(middle, end), (start, middle)]
        # An error without a row as its certain cause may be transient, so attempt the row again.
        elif blames_a_row(error) or (error := _try(connection, start, end, attempt)):
            yield start, error


def _try(connection: Connection, start: int, end: int, attempt: Callable[[int, int], None]) -> psycopg.Error | None:
    """Run `attempt` in a savepoint. Returns the error after a rollback to the savepoint, or None."""
    connection.execute("SAVEPOINT sifted")
    try:
        attempt(start, end)
    except psycopg.Error as error:
        if connection.closed or not may_blame_a_row(error):
            raise
        connection.execute("ROLLBACK TO SAVEPOINT sifted")
        return error
    finally:
        if not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
            connection.execute("RELEASE SAVEPOINT sifted")
    return None


def _line(*cells: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
