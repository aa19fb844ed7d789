"""Reads the panels of a pipeline within a snapshot. A panel whose query fails has a sentence, and delays no other panel."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from psycopg import sql

from onefold.dashboard.reader import FAILURES, TOO_LARGE, Bounded, Connection, bounded, why
from onefold.dashboard.rollups import Level, fetch, path_of, text
from onefold.operate.panels import Panel, Rollup, Stat

# More bars or rows are no overview; a chart has few more points than pixels.
ROWS_MAX = {"stat": 1, "bar": 20, "table": 50, "line": 500}
TIMEOUT_S = 1.0  # for the queries of a panel together
BUDGET_S = 2.0  # for the panels and charts of all views of a snapshot, which has six
NOT_YET = "The panels before it took the time of this snapshot. It is asked again in a moment."
_TOO_LARGE_S = 60.0
# What has no time in a snapshot is shown as it was for so long.
_FORGET_S = 30.0
# A query over a large table is asked again after so many times what it took, so that a viewer does not make the page the
# database's largest reader.
REST = 20


class Figure(NamedTuple):
    """A column of a `stat`. expected: the value to compare with; `compared` says whether there is one."""

    name: str
    value: Any
    compared: bool = False
    expected: Any = None


class Bar(NamedTuple):
    """A row of a `bar`. share: of the longest, in percent. values: its length, and the values beside it."""

    label: str
    share: float
    values: Sequence[Any]


class Table(NamedTuple):
    """The rows of `bar`, `table` and `line`, with the names of the columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


Content = Sequence[Figure] | Table | Level


@dataclass(frozen=True)
class Shown:
    """A panel with its content.

    Attributes:
        number: its place in the file, from 1.
        taken_at: the time of the snapshot that it was read in.
        trouble: why there is no content, or "".
    """

    number: int
    panel: Panel
    taken_at: datetime
    content: Content | None = None
    trouble: str = ""


class Kept(NamedTuple):
    """What a query gave.

    Attributes:
        until: when the query may run again.
        taken_at: the time of the snapshot that it ran in.
        content: None where there is none.
        trouble: why there is none, or "".
    """

    until: float
    asked: Any
    taken_at: datetime
    content: Any
    trouble: str


class Reading:
    """Reads panels and latencies, and keeps the content of each until its query may run again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._kept: dict[tuple[Any, ...], Kept] = {}

    def ends(self, seconds: float | None = None) -> float:
        """When a budget of so many seconds that begins now is spent; if none is given, that of the panels and charts."""
        return self._clock() + (BUDGET_S if seconds is None else seconds)

    async def fetch(
        self,
        connection: Connection,
        name: str,
        panels: Sequence[Panel],
        wanted: Mapping[str, str],
        taken_at: datetime,
        ends: float,
    ) -> list[Shown]:
        """The panels of the pipeline `name`, inside of a snapshot of that moment. Raises psycopg.Error.

        Args:
            wanted: the address: the level of a rollup, and under "of" the number of the rollup that is meant.
            ends: no query begins after that time.
        """
        found = []
        for number, panel in enumerate(panels, 1):
            meant = wanted if wanted.get("of", str(number)) == str(number) else {}
            path = path_of(panel, meant) if isinstance(panel, Rollup) else ()
            read = partial(_content, panel=panel, path=path)
            kept = await self.read(connection, (name, number, path), panel, read, taken_at, ends)
            found.append(Shown(number, panel, kept.taken_at, kept.content, kept.trouble))
        return found

    async def read(
        self,
        connection: Connection,
        key: tuple[Any, ...],
        asked: Any,
        read: Callable[[Bounded], Awaitable[Any]],
        taken_at: datetime,
        ends: float,
    ) -> Kept:
        """What `read` gives, or gave under that key while its query rests. Raises psycopg.Error if the connection is gone.

        Args:
            asked: what was kept of something else is read again.
            ends: no query begins after that time.
        """
        began = self._clock()
        self._kept = {key: kept for key, kept in self._kept.items() if kept.until > began - _FORGET_S}
        kept = self._kept.get(key)
        if kept is not None and kept.asked == asked and (kept.until > began or began >= ends):
            return kept
        if began >= ends:
            return Kept(began, asked, taken_at, None, NOT_YET)
        content, trouble = await _read(connection, read)
        ended = self._clock()
        rest_s = _TOO_LARGE_S if trouble == TOO_LARGE else REST * (ended - began)
        self._kept[key] = Kept(ended + rest_s, asked, taken_at, content, trouble)
        return self._kept[key]


async def _read(connection: Connection, read: Callable[[Bounded], Awaitable[Any]]) -> tuple[Any, str]:
    """The content, and the reason why there is none."""
    try:
        async with bounded(connection, TIMEOUT_S) as limited:
            return await read(limited), ""
    except _Unfit as error:
        return None, str(error)
    except FAILURES as error:
        return None, why(error, connection)


async def _content(connection: Bounded, panel: Panel, path: tuple[str, ...]) -> Content:
    if isinstance(panel, Rollup):
        return await fetch(connection, panel, path)
    table = await _table(connection, panel.query, ROWS_MAX[panel.kind])
    if isinstance(panel, Stat):
        expected = await _table(connection, panel.expected, 1) if panel.expected is not None else Table((), ())
        return _figures(table, expected)
    if panel.kind == "bar" and not _fits(table, numbers=1):
        raise _Unfit("A bar needs a label, and then a number.")
    if panel.kind == "line" and not (
        len(table.columns) <= 3 and _fits(table, numbers=2) and all(map(_time, table.rows))
    ):
        raise _Unfit("A line needs a time, and then one or two numbers.")
    return table


async def _table(connection: Bounded, query: str, rows: int) -> Table:
    wrapped = sql.SQL("SELECT * FROM ({}\n) AS panel LIMIT {}").format(text(query), rows)
    cursor = await connection.execute(wrapped)
    return Table([column.name for column in cursor.description or ()], await cursor.fetchall())


class _Unfit(Exception):
    """The rows are none that a panel of this kind can show."""


def _figures(table: Table, expected: Table) -> list[Figure]:
    """One for each column, with the value that is expected of it."""
    row = table.rows[0] if table.rows else [None] * len(table.columns)
    if lacks := [name for name in expected.columns if name not in table.columns]:
        raise _Unfit(f"The query has no column {lacks[0]}, for which a value is expected.")
    wanted = dict(zip(expected.columns, expected.rows[0], strict=True)) if expected.rows else {}
    named = zip(table.columns, row, strict=True)
    return [Figure(name, value, name in wanted, wanted.get(name)) for name, value in named]


def _fits(table: Table, numbers: int) -> bool:
    """Whether the rows have a first column, and then up to so many that are numbers."""
    return len(table.columns) > 1 and all(_is_number(value) for row in table.rows for value in row[1 : 1 + numbers])


def _time(row: Sequence[Any]) -> bool:
    return isinstance(row[0], date) or (row[0] is not None and _is_number(row[0]))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value is None
    return math.isfinite(value)


def bars(table: Table) -> list[Bar]:
    """The rows of a `bar`, each with its share of the longest."""
    longest = max((row[1] for row in table.rows if row[1] is not None), default=0)
    return [Bar(str(row[0]), _share(row[1], longest), row[1:]) for row in table.rows]


def points(table: Table) -> list[list[float | None]]:
    """The points of a `line`, as its script reads them: [times, [numbers], ...]."""
    columns = range(1, len(table.columns))
    numbers = ([None if row[at] is None else float(row[at]) for row in table.rows] for at in columns)
    return [[_seconds(row[0]) for row in table.rows], *numbers]


def _seconds(at: Any) -> float:
    """A time in unix seconds; UTC where it has no zone."""
    if isinstance(at, date) and not isinstance(at, datetime):
        at = datetime(at.year, at.month, at.day, tzinfo=UTC)
    if not isinstance(at, datetime):
        return float(at)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _share(value: Any, longest: Any) -> float:
    return max(0.0, float(100 * (value / longest))) if value is not None and longest > 0 else 0.0
