"""The log of a sheet for workers and readers: entries with consecutive numbers, written by the sink to sheets.entries.

Numbers are consecutive from 1, so the number of rows shows whether all entries up to a number are present. Rows never change,
so the result stays true, and reads need no transaction.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, LiteralString, NamedTuple

from onefold.jobs.apps.sheets.cells import BEGIN, COLS_MAX, ROWS_MAX, Cell, Rect, Value, value_of
from onefold.jobs.protocols import Place
from onefold.spark_sink.postgres.connection import Connection

#: All cells of a sheet.
EVERYWHERE = Rect(1, 1, ROWS_MAX, COLS_MAX)
# The rows of a fetch. A cell may have 32,767 characters of up to four bytes, so 64 rows are at most 8 MB.
_FETCH_ROWS = 64


class Edit(NamedTuple):
    """The value of a cell by an entry; None if the entry cleared the cell."""

    cell: Cell
    entry: int
    value: Value | None


class Import(NamedTuple):
    """An entry with a payload."""

    entry: int
    object_id: str


class FinishedEntry(NamedTuple):
    """A finished snapshot from sheets.snapshots."""

    place: Place
    root: str


class Entries:
    """The log of sheets, in the tables sheets.entries and sheets.snapshots.

    Attributes:
        rows_read: The number of rows fetched so far.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """`connect` opens a connection in autocommit mode, and is called again after a broken connection."""
        self.rows_read = 0
        self._connect, self._connection, self._names = connect, None, count(1)  # type: Any, Connection | None, count[int]

    def landed(self, sheet: str, after: int, upto: int | None = None) -> int:
        """The highest number without a missing entry before it, provided that no entry up to `after` is missing.

        With `upto` the result may be `upto` even if later entries are present. Like all methods, raises psycopg.Error if
        PostgreSQL fails or does not answer.
        """
        if upto is not None:
            there = self._one(
                "SELECT count(*) FROM sheets.entries WHERE sheet_id = %s AND entry > %s AND entry <= %s",
                (sheet, after, upto),
            )
            if there[0] == upto - after:
                return upto
        # The nth row after `after` has the number after + n unless an earlier entry is missing.
        found = self._one(
            "SELECT max(entry) FROM (SELECT entry, %s + row_number() OVER (ORDER BY entry) AS dense FROM sheets.entries"
            " WHERE sheet_id = %s AND entry > %s) AS numbered WHERE entry = dense",
            (after, sheet, after),
        )
        return after if found[0] is None else int(found[0])

    def segment_of_snapshot(self, sheet: str, entry: int) -> int | None:
        """The segment of a snapshot entry; None if the entry is no snapshot entry or is not written yet."""
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
        """Stream the newest edit after `after` and up to `upto` of each cell inside `rect`, from `from_cell` on, in cell order.

        The server sorts and stores the result outside of a transaction, so a long job keeps no transaction open.
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
        """The entries with payloads after `after` and up to `upto`, in order."""
        rows = self._all(
            "SELECT entry, object_id FROM sheets.entries WHERE sheet_id = %s AND entry > %s AND entry <= %s"
            " AND kind = 'import' ORDER BY entry",
            (sheet, after, upto),
        )
        return [Import(*row) for row in rows]

    def finished(self, sheet: str, upto: int | None = None) -> FinishedEntry | None:
        """The newest finished snapshot, at or before the entry `upto` if given; None without a snapshot."""
        rows = self._all(
            "SELECT segment, entry, root FROM sheets.snapshots WHERE sheet_id = %s AND entry <= coalesce(%s, entry)"
            " ORDER BY entry DESC LIMIT 1",
            (sheet, upto),
        )
        return FinishedEntry(Place(*rows[0][:2]), rows[0][2]) if rows else None

    def known(self, sheet: str) -> bool:
        """Whether any entry of the sheet is written."""
        return bool(self._one("SELECT EXISTS (SELECT FROM sheets.entries WHERE sheet_id = %s)", (sheet,))[0])

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:  # psycopg closes a broken connection
            self._connection = self._connect()
        return self._connection

    def _all(self, query: LiteralString, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        rows = self._open().execute(query, values).fetchall()
        self.rows_read += len(rows)
        return rows

    def _one(self, query: LiteralString, values: tuple[Any, ...]) -> tuple[Any, ...]:
        (row,) = self._all(query, values)
        return row
