"""Rollups of a panel, with sums at every level of a hierarchy: read one level, and compare all sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import psycopg
from psycopg import sql

from onefold.dashboard.reader import Bounded, Connection, bounded, why
from onefold.operate.panels import Rollup

CHILDREN_MAX = 500  # more rows give no overview
# For all rollups together, because the page is made each second. Each rollup has an equal share, so a large one delays no small
# one.
BUDGET_S = 2.0
TOO_MANY = "It has too many rows to be compared each second."

Path = tuple[str, ...]
#: Names of a pipeline and of a panel.
Named = tuple[str, str]


@dataclass(frozen=True)
class ExactSum:
    """An exact sum, and the number of summands."""

    value: Decimal
    count: int

    def __bool__(self) -> bool:
        return bool(self.value or self.count)

    def __sub__(self, other: ExactSum) -> ExactSum:
        return ExactSum(self.value - other.value, self.count - other.count)


@dataclass(frozen=True)
class LevelRow:
    """One row of a level, with the sums of the pipeline and of the producer. Either may be missing."""

    name: str
    ours: ExactSum | None
    expected: ExactSum | None

    @property
    def difference(self) -> ExactSum | None:
        """The pipeline's sum minus the producer's; None without a report of the producer."""
        if self.expected is None:
            return None
        return (self.ours or ExactSum(Decimal(0), 0)) - self.expected


@dataclass(frozen=True)
class Level:
    """A node of the hierarchy and its children at one moment.

    Attributes:
        parts: at most `CHILDREN_MAX` children.
        more_parts: number of further children.
        reported_at: time of the producer's last report.
    """

    path: Path
    node: LevelRow
    parts: Sequence[LevelRow]
    more_parts: int
    reported_at: datetime | None


@dataclass(frozen=True)
class Agreement:
    """Comparison of a rollup's sums.

    Attributes:
        adds_up: whether the sums over each set of levels equal the total; None: no rows.
        differing: number of leaves whose sum differs from the producer's; None: no report of the producer.
        reported_at: time of the producer's last report.
        problem: reason why nothing was compared, in one sentence, or "".
    """

    adds_up: bool | None
    differing: int | None = None
    reported_at: datetime | None = None
    problem: str = ""


Agreements = Mapping[Named, Agreement]


def path_of(rollup: Rollup, wanted: Mapping[str, str]) -> Path:
    """Names in `wanted` level by level, up to the first missing level."""
    names: list[str] = []
    for level in rollup.levels:
        if level not in wanted:
            break
        names.append(wanted[level])
    return tuple(names)


async def fetch(connection: Connection | Bounded, rollup: Rollup, path: Path) -> Level:
    """Fetch the node at `path` and its children. Raises one of `reader.FAILURES`."""
    ours = await _sums(connection, _own_sums(rollup, path))
    expected, reported_at = {}, None
    if rollup.expected is not None:
        expected = await _sums(connection, _reported_sums(rollup, rollup.expected, path))
        reported = sql.SQL("SELECT {}").format(_reported_at(rollup.expected))
        (reported_at,) = await (await connection.execute(reported)).fetchone() or (None,)
        expected = expected if reported_at else {}
    names = sorted(name for name in {*ours, *expected} if name is not None)
    absent = ExactSum(Decimal(0), 0) if reported_at else None  # a sum that the producer does not report is zero
    rows = [LevelRow(name, ours.get(name), expected.get(name, absent)) for name in names]
    node = LevelRow(path[-1] if path else "", ours.get(None), expected.get(None, absent))
    return Level(path, node, rows[:CHILDREN_MAX], max(0, len(rows) - CHILDREN_MAX), reported_at)


async def agreements(connection: Connection, found: Collection[tuple[Named, Rollup]]) -> Agreements:
    """Compare the sums of each rollup, without rollups whose tables are missing or unreadable. Raises psycopg.Error."""
    compared = {named: await _compared(connection, rollup, BUDGET_S / len(found)) for named, rollup in found}
    return {named: one for named, one in compared.items() if one is not None}


async def _compared(connection: Connection, rollup: Rollup, seconds: float) -> Agreement | None:
    try:
        async with bounded(connection, seconds) as limited:
            row = await (await limited.execute(_comparison(rollup))).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege):
        return None
    except psycopg.errors.QueryCanceled:
        return Agreement(None, problem=TOO_MANY)
    except psycopg.Error as error:
        return Agreement(None, problem=why(error, connection))
    assert row is not None, "an aggregate without groups always has its row"
    sets, different, differing, reported_at = row
    adds_up = None if sets == 0 else bool(sets == 2 ** len(rollup.levels) and different == 1)
    return Agreement(adds_up, None if reported_at is None else differing, reported_at)


def text(query: str) -> sql.SQL:
    """Wrap a query of a panels file, for use in a statement."""
    return sql.SQL(query)


async def _sums(connection: Connection | Bounded, query: sql.Composed) -> dict[str | None, ExactSum]:
    """Sums by name of the child; None is the node itself. Raises ValueError for NaN and infinity."""
    rows = await (await connection.execute(query)).fetchall()
    found = {name: ExactSum(Decimal(value), int(count)) for name, value, count in rows if value is not None}
    if not all(one.value.is_finite() for one in found.values()):
        raise ValueError("NaN and infinity cannot be compared")
    return found


def _own_sums(rollup: Rollup, path: Path) -> sql.Composed:
    """Rows of the rollup: the node, with child NULL, and the node's children. Finer levels are NULL in both."""
    finer = [sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in rollup.levels[len(path) + 1 :]]
    return sql.SQL("SELECT {child}::text, {value}, {count} FROM ({query}\n) AS held WHERE {where}").format(
        child=_child(rollup, path),
        value=sql.Identifier(rollup.value),
        count=sql.Identifier(rollup.count),
        query=text(rollup.query),
        where=_all([*_on_the_path(rollup, path), *finer]),
    )


def _reported_sums(rollup: Rollup, expected: str, path: Path) -> sql.Composed:
    """The producer's leaves, summed up to the node's children and to the node."""
    return sql.SQL(
        "SELECT {child}::text, sum({value}), sum({count}) FROM ({query}\n) AS reported WHERE {where} GROUP BY {groups}"
    ).format(
        child=_child(rollup, path),
        value=sql.Identifier(rollup.value),
        count=sql.Identifier(rollup.count),
        query=text(expected),
        where=_all(_on_the_path(rollup, path)),
        groups=sql.SQL("ROLLUP ({})").format(_child(rollup, path)) if len(path) < len(rollup.levels) else sql.SQL("()"),
    )


def _child(rollup: Rollup, path: Path) -> sql.Composable:
    return sql.Identifier(rollup.levels[len(path)]) if len(path) < len(rollup.levels) else sql.NULL


def _on_the_path(rollup: Rollup, path: Path) -> list[sql.Composable]:
    named = zip(rollup.levels, path, strict=False)
    return [sql.SQL("{} = {}").format(sql.Identifier(level), sql.Literal(name)) for level, name in named]


def _all(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")


_QUERY = """
WITH held AS NOT MATERIALIZED ({query}
), level AS (SELECT sum({value}) AS value, sum({count}) AS count FROM held GROUP BY {absent}), leaf AS ({leaf})
SELECT (SELECT count(*) FROM level), (SELECT count(DISTINCT (value, count)) FROM level),
       (SELECT count(*) FROM leaf), {reported_at}
"""
# A leaf that one side lacks counts as zero on that side.
_LEAF = """
SELECT FROM (SELECT {levels}, {value}, {count} FROM held WHERE {present}
             UNION ALL SELECT {levels}, -{value}, -{count} FROM ({expected}
) AS reported) AS both_sides
GROUP BY {levels} HAVING sum({value}) <> 0 OR sum({count}) <> 0
"""


def _comparison(rollup: Rollup) -> sql.Composed:
    """Build one query for the whole comparison. The total of each set of levels is one `level`; rows without NULL are leaves."""
    levels = [sql.Identifier(level) for level in rollup.levels]
    parts = {
        "query": text(rollup.query),
        "value": sql.Identifier(rollup.value),
        "count": sql.Identifier(rollup.count),
        "levels": sql.SQL(", ").join(levels),
        "absent": sql.SQL(", ").join(sql.SQL("{} IS NULL").format(level) for level in levels),
        "present": sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(level) for level in levels),
    }
    if rollup.expected is None:
        nothing = {"leaf": sql.SQL("SELECT WHERE false"), "reported_at": sql.SQL("NULL::timestamptz")}
        return sql.SQL(_QUERY).format(**parts, **nothing)
    expected = text(rollup.expected)
    leaf = sql.SQL(_LEAF).format(**parts, expected=expected)
    return sql.SQL(_QUERY).format(**parts, leaf=leaf, reported_at=_reported_at(rollup.expected))


def _reported_at(expected: str) -> sql.Composed:
    """Time of the last report with a time zone, for comparison with the time of a snapshot."""
    return sql.SQL("(SELECT max(reported_at)::timestamptz FROM ({}\n) AS reported)").format(text(expected))
