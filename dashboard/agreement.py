"""Whether the sums of every rollup agree, with each other and with what their producer reports.

The headline is made of it, which is the same whatever view is open: a view shows one node of one rollup, and this is of all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql

from onefold.dashboard.reader import STATEMENT_S, Connection
from onefold.dashboard.rollups import Rollup

# For all rollups together: the page is made once a second. Each has its share, so that a large one takes none of the others'.
BUDGET_S = 2.0


@dataclass(frozen=True)
class Agreement:
    """Of one rollup.

    Attributes:
        adds_up: whether the sums over each set of levels are the total; None: it is empty.
        differing: how many leaves have another sum than the producer reports for them; None: it reports nothing.
        reported_at: when it last reported.
    """

    adds_up: bool | None
    differing: int | None = None
    reported_at: datetime | None = None


#: By the rollup's name. None: there is too much to compare.
Agreements = dict[str, Agreement | None]


async def fetch(connection: Connection, found: Collection[Rollup]) -> Agreements:
    """Of each of them, in the snapshot that the connection is in. Raises psycopg.Error."""
    if not found:
        return {}
    await _allow(connection, BUDGET_S / len(found))
    agreements = {rollup.name: await _in_time(connection, rollup) for rollup in found}
    await _allow(connection, STATEMENT_S)
    return agreements


async def _allow(connection: Connection, seconds: float) -> None:
    """Each statement of this transaction may take that long from now on."""
    await connection.execute(sql.SQL("SET LOCAL statement_timeout = {}").format(max(1, round(seconds * 1000))))


async def _in_time(connection: Connection, rollup: Rollup) -> Agreement | None:
    try:
        async with connection.transaction():  # what takes too long ends no more than this
            row = await (await connection.execute(_query(rollup))).fetchone()
    except psycopg.errors.QueryCanceled:
        return None
    assert row is not None, "an aggregate without groups always has its row"
    sets, different, differing, reported_at = row
    adds_up = None if sets == 0 else bool(sets == 2 ** len(rollup.levels) and different == 1)
    return Agreement(adds_up, None if reported_at is None else differing, reported_at)


_QUERY = """
WITH level AS (SELECT sum({value}) AS value, sum({count}) AS count FROM {table} GROUP BY {absent}), leaf AS ({leaf})
SELECT (SELECT count(*) FROM level), (SELECT count(DISTINCT (value, count)) FROM level),
       (SELECT count(*) FROM leaf), {reported_at}
"""
# What neither has is nothing to both.
_LEAF = """
SELECT FROM (SELECT {levels}, {value}, {count} FROM {table} WHERE {present}
             UNION ALL SELECT {levels}, -{value}, -{count} FROM {truth}) AS both_sides
GROUP BY {levels} HAVING sum({value}) <> 0 OR sum({count}) <> 0
"""


def _query(rollup: Rollup) -> sql.Composed:
    """One question for all of it: its levels are the sums of each set of them, its leaves the rows without a NULL."""
    levels = [sql.Identifier(level) for level in rollup.levels]
    parts = {
        "value": sql.Identifier(rollup.value),
        "count": sql.Identifier(rollup.count),
        "table": sql.Identifier(rollup.schema, rollup.table),
        "truth": sql.Identifier(rollup.schema, "truth"),
        "levels": sql.SQL(", ").join(levels),
        "absent": sql.SQL(", ").join(sql.SQL("{} IS NULL").format(level) for level in levels),
        "present": sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(level) for level in levels),
    }
    if not rollup.has_truth:
        return sql.SQL(_QUERY).format(
            **parts, leaf=sql.SQL("SELECT WHERE false"), reported_at=sql.SQL("NULL::timestamptz")
        )
    reported_at = sql.SQL("(SELECT max(told_at) FROM {})").format(parts["truth"])
    return sql.SQL(_QUERY).format(**parts, leaf=sql.SQL(_LEAF).format(**parts), reported_at=reported_at)
