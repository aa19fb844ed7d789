"""Charts of a pipeline's own: what a person would rather look at than read.

A pipeline has one for each view `chart_...` in its schema: a bar per row, in the view's order. The first column says what the bar
stands for, the second, a number, how long it is; further columns stand beside it. The view's comment is the title. The page knows
none of them by name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from onefold.dashboard.reader import STATEMENT_S, Connection

ROWS_MAX = 20  # more bars are no overview
# A view over a large table costs a second. It is asked again after so many times what it took, so that somebody who looks does
# not make the page the database's largest reader.
REST = 20
# Asked inside of a snapshot, which has six.
TIMEOUT_S = 1
TOO_LARGE = "This takes the database more than a second, and is asked again every minute."
_TOO_LARGE_S = 60.0

_FIND = """
SELECT class.relname, coalesce(obj_description(class.oid, 'pg_class'), class.relname)
FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE space.nspname = %s AND starts_with(class.relname, 'chart_') AND class.relkind IN ('v', 'm')
  AND has_schema_privilege(space.oid, 'USAGE') AND has_table_privilege(class.oid, 'SELECT')
ORDER BY class.relname
"""


@dataclass(frozen=True)
class Bar:
    """share: of the longest, in percent. values: how long it is, and what stands beside it."""

    label: str
    share: float
    values: Sequence[Any]


@dataclass(frozen=True)
class Chart:
    """One view.

    Attributes:
        columns: the names of label and values.
        taken_at: when it was asked.
        trouble: why there is nothing to see, or "".
    """

    name: str
    title: str
    taken_at: datetime
    columns: Sequence[str] = ()
    bars: Sequence[Bar] = ()
    trouble: str = ""


class Charts:
    """Asks, and keeps what was said until it may be asked again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that only grow."""
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[float, Chart]] = {}

    async def fetch(self, connection: Connection, schema: str, taken_at: datetime) -> list[Chart]:
        """Those of a schema, inside of a snapshot of that moment. Raises psycopg.Error."""
        there = await (await connection.execute(_FIND, (schema,))).fetchall()
        charts = []
        for name, title in there:
            not_before, chart = self._kept.get((schema, name), (0.0, None))
            if chart is None or chart.title != title or self._clock() >= not_before:
                began = self._clock()
                chart = await _ask(connection, schema, name, title, taken_at)
                ended = self._clock()
                rest_s = _TOO_LARGE_S if chart.trouble == TOO_LARGE else REST * (ended - began)
                self._kept[schema, name] = ended + rest_s, chart
            charts.append(chart)
        return charts


async def _ask(connection: Connection, schema: str, name: str, title: str, taken_at: datetime) -> Chart:
    query = sql.SQL("SELECT * FROM {} LIMIT {}").format(sql.Identifier(schema, name), ROWS_MAX)
    try:
        async with connection.transaction():
            await connection.execute(_timeout(TIMEOUT_S))
            cursor = await connection.execute(query)
            rows = await cursor.fetchall()
            # What is asked after this in the snapshot has as long as before; an error sets that back by itself.
            await connection.execute(_timeout(STATEMENT_S))
    except psycopg.errors.QueryCanceled:
        return Chart(name, title, taken_at, trouble=TOO_LARGE)
    except (psycopg.ProgrammingError, psycopg.DataError) as error:
        return Chart(name, title, taken_at, trouble=f"The view does not work: {str(error).splitlines()[0]}.")
    columns = [column.name for column in cursor.description or ()]
    if len(columns) < 2 or not all(_is_number(row[1]) for row in rows):
        return Chart(name, title, taken_at, trouble="The view needs a label, and then a number.")
    longest = max((row[1] for row in rows if row[1] is not None), default=0)
    bars = [Bar(str(row[0]), _share(row[1], longest), row[1:]) for row in rows]
    return Chart(name, title, taken_at, columns, bars)


def _timeout(seconds: float) -> sql.Composed:
    return sql.SQL("SET LOCAL statement_timeout = {}").format(f"{seconds}s")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value is None
    return math.isfinite(value)


def _share(value: Any, longest: Any) -> float:
    return max(0.0, float(100 * value / longest)) if value is not None and longest > 0 else 0.0
