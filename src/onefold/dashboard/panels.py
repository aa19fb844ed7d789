"""Read the panels of a pipeline within a snapshot. A panel whose query fails shows the reason, and delays no other panel."""

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

# More bars or rows give no overview; a chart has few more points than pixels.
ROWS_MAX = {"stat": 1, "bar": 20, "table": 50, "line": 500}
TIMEOUT_S = 1.0  # for all queries of one panel
BUDGET_S = 2.0  # for the panels and charts of all views in a snapshot, whose limit is SNAPSHOT_S
NOT_YET = "The panels before it took the time of this snapshot. It is asked again in a moment."
_TOO_LARGE_S = 60.0
# A panel without time in a snapshot shows its cached content for this long.
_FORGET_S = 30.0
# A query runs again only after REST times its own duration. So queries over large tables load the database little.
REST = 20


class Figure(NamedTuple):
    """A column of a `stat`. `compared`: whether there is an expected value. `expected`: the value to compare with."""

    name: str
    value: Any
    compared: bool = False
    expected: Any = None


class Bar(NamedTuple):
    """A row of a `bar`. `share`: percent of the longest bar. `values`: the length, and the values beside the bar."""

    label: str
    share: float
    values: Sequence[Any]


class PanelContent(NamedTuple):
    """Rows of a `bar`, `table` or `line`, with the names of the columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


Content = Sequence[Figure] | PanelContent | Level


@dataclass(frozen=True)
class ShownPanel:
    """A panel with content.

    Attributes:
        number: position in the file, from 1.
        taken_at: time of the snapshot with the content.
        trouble: reason why there is no content, or "".
    """

    number: int
    panel: Panel
    taken_at: datetime
    content: Content | None = None
    trouble: str = ""


class Kept(NamedTuple):
    """Cached result of a query.

    Attributes:
        until: time from which the query may run again.
        asked: the question; a result of a different question is not used.
        taken_at: time of the snapshot in which the query ran.
        content: None without a result.
        trouble: reason why there is no content, or "".
    """

    until: float
    asked: Any
    taken_at: datetime
    content: Any
    trouble: str


class PanelReader:
    """Reader of panels and charts, with a cache of each result until the query may run again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._kept: dict[tuple[Any, ...], Kept] = {}

    def ends(self, seconds: float | None = None) -> float:
        """End of a time budget that begins now; the default is the budget of panels and charts."""
        return self._clock() + (BUDGET_S if seconds is None else seconds)

    async def fetch(
        self,
        connection: Connection,
        name: str,
        panels: Sequence[Panel],
        wanted: Mapping[str, str],
        taken_at: datetime,
        ends: float,
    ) -> list[ShownPanel]:
        """Read the panels of the pipeline `name`, inside a snapshot at `taken_at`. Raises psycopg.Error.

        Args:
            wanted: items of the address: the level of a rollup, and under "of" the number of that rollup's panel.
            ends: no query begins after this time.
        """
        found = []
        for number, panel in enumerate(panels, 1):
            meant = wanted if wanted.get("of", str(number)) == str(number) else {}
            path = path_of(panel, meant) if isinstance(panel, Rollup) else ()
            read = partial(_content, panel=panel, path=path)
            kept = await self.read(connection, (name, number, path), panel, read, taken_at, ends)
            found.append(ShownPanel(number, panel, kept.taken_at, kept.content, kept.trouble))
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
        """Return the result of `read`, or the cached result under `key`. Raises psycopg.Error if the connection is lost.

        Args:
            asked: the question; a cached result of a different question is not used.
            ends: no query begins after this time.
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
    """Return the content, and the reason why there is none or ""."""
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
        expected = await _table(connection, panel.expected, 1) if panel.expected is not None else PanelContent((), ())
        return _figures(table, expected)
    if panel.kind == "bar" and not _fits(table, numbers=1):
        raise _Unfit("A bar needs a label, and then a number.")
    if panel.kind == "line" and not (
        len(table.columns) <= 3 and _fits(table, numbers=2) and all(map(_time, table.rows))
    ):
        raise _Unfit("A line needs a time, and then one or two numbers.")
    return table


async def _table(connection: Bounded, query: str, rows: int) -> PanelContent:
    wrapped = sql.SQL("SELECT * FROM ({}\n) AS panel LIMIT {}").format(text(query), rows)
    cursor = await connection.execute(wrapped)
    return PanelContent([column.name for column in cursor.description or ()], await cursor.fetchall())


class _Unfit(Exception):
    """The rows do not fit a panel of this kind."""


def _figures(table: PanelContent, expected: PanelContent) -> list[Figure]:
    """One figure per column, each with its expected value."""
    row = table.rows[0] if table.rows else [None] * len(table.columns)
    if lacks := [name for name in expected.columns if name not in table.columns]:
        raise _Unfit(f"The query has no column {lacks[0]}, for which a value is expected.")
    wanted = dict(zip(expected.columns, expected.rows[0], strict=True)) if expected.rows else {}
    named = zip(table.columns, row, strict=True)
    return [Figure(name, value, name in wanted, wanted.get(name)) for name, value in named]


def _fits(table: PanelContent, numbers: int) -> bool:
    """Whether rows have at least two columns, and up to `numbers` columns after the first hold numbers or NULL."""
    return len(table.columns) > 1 and all(_is_number(value) for row in table.rows for value in row[1 : 1 + numbers])


def _time(row: Sequence[Any]) -> bool:
    return isinstance(row[0], date) or (row[0] is not None and _is_number(row[0]))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value is None
    return math.isfinite(value)


def bars(table: PanelContent) -> list[Bar]:
    """Rows of a `bar`, each with the share of the longest."""
    longest = max((row[1] for row in table.rows if row[1] is not None), default=0)
    return [Bar(str(row[0]), _share(row[1], longest), row[1:]) for row in table.rows]


def points(table: PanelContent) -> list[list[float | None]]:
    """Points of a `line` in the format of the page's script: [times, [numbers], ...]."""
    columns = range(1, len(table.columns))
    numbers = ([None if row[at] is None else float(row[at]) for row in table.rows] for at in columns)
    return [[_seconds(row[0]) for row in table.rows], *numbers]


def _seconds(at: Any) -> float:
    """Convert a time to unix seconds; without a zone, the time is UTC."""
    if isinstance(at, date) and not isinstance(at, datetime):
        at = datetime(at.year, at.month, at.day, tzinfo=UTC)
    if not isinstance(at, datetime):
        return float(at)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _share(value: Any, longest: Any) -> float:
    return max(0.0, float(100 * (value / longest))) if value is not None and longest > 0 else 0.0
