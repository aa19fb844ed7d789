"""When PostgreSQL refuses a batch: find the rows to blame, set them aside with the reason, write all others.

PostgreSQL names the error, not the row. So the rows are merged in the order in which they were written, in halves of halves, each
beside what was merged before it: a half that PostgreSQL refuses goes back to its savepoint. A row that is refused alone is to
blame. Rows of a reduction stand for the records of the batch together: there the records are halved, and each half is reduced
and merged by itself. Everything happens inside the transaction that lands the batch, under the locks of the ledger.
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

# Of one table in one batch PostgreSQL may refuse so many rows, or this share of them if that is more. Beyond it the table is
# wrong, and to set aside all that comes would only hide it.
REFUSED_MAX = 100
REFUSED_SHARE = 0.01
# Each costs some twenty statements, in a transaction for which other sinks wait. It is that share of the largest batch: with less
# a backlog, and a rebuild, would stop for good at rows that small batches have set aside one after the other.
REFUSED_MOST = int(MAX_OFFSETS_PER_BATCH * REFUSED_SHARE)
# Of the records that a query reduces PostgreSQL may refuse REFUSED_MAX in so many offsets, the same share: to find one takes some
# twenty jobs of Spark. A batch that covers more is cut.
REDUCED_OFFSETS = int(REFUSED_MAX / REFUSED_SHARE)
# The same in batches of a few rows: where at least this share of each batch was refused, all of them count together.
_RUN_SHARE = 0.1
# Lines that are in Python's memory at once.
_COPIED_LINES = 1_000


@dataclass
class Bound:
    """How many rows of a pipeline may be set aside. It outlives a query's starts: these must not give a wrong table more rows.

    Attributes:
        runs: for each table, the refused rows of the batches before, if these had a large share of them.
        rows, refused: for each table, of the parts of a batch that have been committed; empty after the last part.
    """

    runs: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def most(self, rows: int) -> int:
        """Of so many rows in one batch."""
        return max(REFUSED_MAX, min(REFUSED_MOST, int(rows * REFUSED_SHARE)))

    def run(self, table: str, rows: int, refused: int) -> int:
        """How many were refused in a row of batches up to this one."""
        return self.runs[table] + refused if refused >= rows * _RUN_SHARE else 0

    def landed(self, rows: Mapping[str, int], refused: Mapping[str, int]) -> None:
        """A batch or a part has landed: so many rows of each table, of which so many were refused."""
        for table, count in rows.items():
            self.runs[table] = self.run(table, count, refused.get(table, 0))
        self.rows.update(rows)
        self.refused.update(refused)

    def end_batch(self) -> None:
        """All parts of a batch have landed."""
        self.rows.clear()
        self.refused.clear()


class _Row(NamedTuple):
    """A row of the batch, by its number in the part of its target; or a record that queries reduce, of the topic `target`."""

    target: str
    number: int
    origin: tuple[str, int, int]


class Sifted(Staged):
    """A batch that PostgreSQL refuses as a whole: `fill` merges the rows that it takes, and leaves the others to be set aside.

    Attributes:
        refused: of each table the rows that PostgreSQL has refused, after `fill`.
        reason: what it said of the first one.
        written: how many rows the merges have changed.
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
        self._merging = ""  # the target at which a merge of reduced rows has arrived
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
        """How many rows each table has in the batch; of a reduction, how many records its topic has."""
        records = Counter(row.target for row in self._reduced_rows)
        reduced = {name: records[self._all_targets[name].reads] for name in self._reduced}
        return {**reduced, **{name: len(numbers) for name, numbers in self._numbers.items()}}

    def fill(self, connection: Connection) -> None:
        """Merge all rows that PostgreSQL takes, and stage the others for REJECTED.

        Raises:
            Stopped: PostgreSQL refuses too many rows, or what a query makes of no record.
            psycopg.Error: no row is to blame.
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
        """The rows that PostgreSQL refuses, each with the error. All others are merged."""
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
        """Copy the rows into tables of their own, with their numbers; those are given that hold a value of no column."""
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
        """Copy the rows of a target from the one with index `start` to the one before `end`, in order."""
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
        """Merge what was copied; those are given that PostgreSQL refuses beside the rows before them."""

        def apply(start: int, end: int) -> None:
            # A deferred constraint is checked when the transaction ends: the same for a part of the rows.
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
        """Merge what the queries make of the records; those are given that PostgreSQL refuses beside the records before them."""
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
        """Have Spark run the queries over these records alone."""
        with awake(connection):
            return by(self._source.only(records).to_arrow(), "target")

    def _try_with_none(self, connection: Connection) -> None:
        """A row that PostgreSQL refuses although a query made it of no record is no record's fault. Changes nothing."""
        parts, written = self._reduce(connection, []), self.written
        if parts.keys() & self._reduced:
            connection.execute("SAVEPOINT none")
            self._apply_to_none(connection, parts)
            connection.execute("ROLLBACK TO SAVEPOINT none; RELEASE SAVEPOINT none")
            self.written = written

    def _apply_to_none(self, connection: Connection, parts: Mapping[str, pa.Table]) -> None:
        """A query may have rows where it has no record."""
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
        # A deferred constraint may hold between two of their tables; what was merged before left all of them immediate.
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
            # Kafka may take its time for a thousand of them, and the server ends a session that idles inside a transaction.
            connection.execute("SELECT 1")
            topic, partition, offset = row.origin
            record = self._records.record_from(topic, partition, offset)
            value = (record.value if record and record.offset == offset else None) or b""
            reason = f"Postgres refused the row: {sentence(error)}"
            yield _line(self._sink, reason, "\\x" + value.hex(), topic, partition, offset)


# No field of a contract has such a name.
_NUMBER = sql.Identifier("onefold number")


def in_order(parts: Mapping[str, pa.Table]) -> list[_Row]:
    """The rows of all tables in the order in which they were written: in a partition that of the offsets, whatever times their
    producers gave them, and between partitions that of these times.
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
    """Do `attempt` with all of [0, count) that PostgreSQL does not refuse, in order; give each number that it refuses alone."""
    open_ranges = [(0, count)] if count else []
    while open_ranges:
        start, end = open_ranges.pop()
        error = _try(connection, start, end, attempt)
        if error is None:
            continue
        if end - start > 1:
            middle = (start + end) // 2
            open_ranges += [(middle, end), (start, middle)]
        # what no row has to be to blame for may pass by itself
        elif blames_a_row(error) or (error := _try(connection, start, end, attempt)):
            yield start, error


def _try(connection: Connection, start: int, end: int, attempt: Callable[[int, int], None]) -> psycopg.Error | None:
    """The error that `attempt` runs into, and then it has changed nothing; or None."""
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
