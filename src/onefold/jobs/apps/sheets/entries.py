"""The log of a sheet as workers and readers see it: entries with dense numbers, which the sink lands in sheets.entries.

Numbers are dense from 1, so it is provable that all entries up to one are there: as many rows as numbers. Nothing that is
there ever changes, so what has been proven once stays true, and no read here needs a transaction of its own.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, LiteralString, NamedTuple

from onefold.jobs.apps.sheets.cells import BEGIN, COLS_MAX, ROWS_MAX, Cell, Rect, Value, value_of
from onefold.jobs.protocols import Place
from onefold.spark_sink.postgres.connection import Connection

#: All cells of a sheet.
EVERYWHERE = Rect(1, 1, ROWS_MAX, COLS_MAX)
# Rows that are fetched at once. A cell may hold 32,767 characters, of up to four bytes: 64 of them are at most 8 MB.
_FETCH_ROWS = 64


class Edit(NamedTuple):
    """What an entry set a cell to; a value of None cleared it."""

    cell: Cell
    entry: int
    value: Value | None


class Import(NamedTuple):
    """An entry that names a payload."""

    entry: int
    object_id: str


class Finished(NamedTuple):
    """A snapshot that is finished, as it was told to the log and landed."""

    place: Place
    root: str


class Entries:
    """The log of sheets, in the tables sheets.entries and sheets.snapshots.

    Attributes:
        rows_read: rows that were fetched so far.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """`connect` makes a connection in autocommit mode; it is called again when that one broke."""
        self.rows_read = 0
        self._connect, self._connection, self._names = connect, None, count(1)  # type: Any, Connection | None, count[int]

    def landed(self, sheet: str, after: int, upto: int | None = None) -> int:
        """The highest number up to which no entry is missing, given that none is missing up to `after`. With `upto` it may stop
        there. Raises psycopg.Error, as everything here: Postgres fails, or does not answer.
        """
        if upto is not None:
            there = self._one(
                "SELECT count(*) FROM sheets.entries WHERE sheet_id = %s AND entry > %s AND entry <= %s",
                (sheet, after, upto),
            )
            if there[0] == upto - after:
                return upto
        # The nth row after `after` has the number after + n as long as nothing is missing.
        found = self._one(
            "SELECT max(entry) FROM (SELECT entry, %s + row_number() OVER (ORDER BY entry) AS dense FROM sheets.entries"
            " WHERE sheet_id = %s AND entry > %s) AS numbered WHERE entry = dense",
            (after, sheet, after),
        )
        return after if found[0] is None else int(found[0])

    def segment_of_snapshot(self, sheet: str, entry: int) -> int | None:
        """The segment of a snapshot entry; None: the entry is none, or has not landed."""
        rows = self._all(
            "SELECT segment FROM sheets.entries WHERE sheet_id = %s AND entry = %s AND kind = 'snapshot'",
            (sheet, entry),
        )
        return int(rows[0][0]) if rows else None

    def snapshots_between(self, sheet: str, after: int, before: int) -> list[Place]:
        """The snapshot entries with numbers strictly between, in order."""
        rows = self._all(
            "SELECT segment, entry FROM sheets.entries WHERE sheet_id = %s AND entry > %s AND entry < %s"
            " AND kind = 'snapshot' ORDER BY entry",
            (sheet, after, before),
        )
        return [Place(*row) for row in rows]

    def edits(
        self, sheet: str, after: int, upto: int, from_cell: Cell = BEGIN, rect: Rect = EVERYWHERE
    ) -> Iterator[Edit]:
        """Of each cell the newest edit after `after` and up to `upto`, in the order of cells, streamed: cells from `from_cell` on
        that are inside of `rect`. The server sorts and keeps the result outside of any transaction: a long job holds none open.
        """
        with self._open().cursor(f"edits_{next(self._names)}", withhold=True) as rows:
            rows.itersize = _FETCH_ROWS
            rows.execute(
                'SELECT DISTINCT ON ("row", col) "row", col, entry, number, "text", formula FROM sheets.entries'
                " WHERE sheet_id = %s AND entry > %s AND entry <= %s AND kind = 'edit' AND (\"row\", col) >= (%s, %s)"
                ' AND "row" BETWEEN %s AND %s AND col BETWEEN %s AND %s ORDER BY "row", col, entry DESC',
                (sheet, after, upto, *from_cell, rect.top, rect.bottom, rect.left, rect.right),
            )
            for row, col, entry, number, text, formula in rows:
                self.rows_read += 1
                yield Edit((row, col), entry, value_of(number, text, formula))

    def imports(self, sheet: str, after: int, upto: int) -> list[Import]:
        """The payloads that entries after `after` and up to `upto` name, in order of entries."""
        rows = self._all(
            "SELECT entry, object_id FROM sheets.entries WHERE sheet_id = %s AND entry > %s AND entry <= %s"
            " AND kind = 'import' ORDER BY entry",
            (sheet, after, upto),
        )
        return [Import(*row) for row in rows]

    def finished(self, sheet: str, upto: int | None = None) -> Finished | None:
        """The newest finished snapshot at or before an entry; of all when none is given."""
        rows = self._all(
            "SELECT segment, entry, root FROM sheets.snapshots WHERE sheet_id = %s AND entry <= coalesce(%s, entry)"
            " ORDER BY entry DESC LIMIT 1",
            (sheet, upto),
        )
        return Finished(Place(*rows[0][:2]), rows[0][2]) if rows else None

    def known(self, sheet: str) -> bool:
        """Whether anything of the sheet has landed."""
        return bool(self._one("SELECT EXISTS (SELECT FROM sheets.entries WHERE sheet_id = %s)", (sheet,))[0])

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:  # psycopg closes what broke
            self._connection = self._connect()
        return self._connection

    def _all(self, query: LiteralString, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        rows = self._open().execute(query, values).fetchall()
        self.rows_read += len(rows)
        return rows

    def _one(self, query: LiteralString, values: tuple[Any, ...]) -> tuple[Any, ...]:
        (row,) = self._all(query, values)
        return row
