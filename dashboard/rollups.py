"""Rollups: tables that hold sums at every level of a hierarchy. The page finds them in the catalogue and knows none by name.

A table is a rollup when its key is UNIQUE NULLS NOT DISTINCT: NULL then means "all", and the row of NULLs is the
total. The key's columns are the levels, from the coarsest on; its numeric column is the value, its bigint the count.
Beside it, in the same schema, may be `truth` (per leaf the sum that the producer reports) and `landed` (how long messages took).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import cast

from psycopg import sql

from onefold.dashboard.reader import Connection

CHILDREN_MAX = 500  # more rows than this are no overview; the table itself shows them all, page by page

_FIND = """
SELECT space.nspname, class.relname,
       array_agg(field.attname::text ORDER BY place) AS levels,
       (SELECT attname FROM pg_attribute AS a
        WHERE a.attrelid = class.oid AND a.atttypid = 'numeric'::regtype AND attnum > 0 ORDER BY attnum LIMIT 1),
       (SELECT attname FROM pg_attribute AS a
        WHERE a.attrelid = class.oid AND a.atttypid = 'bigint'::regtype AND attnum > 0 ORDER BY attnum LIMIT 1),
       ARRAY(SELECT attname::text FROM pg_attribute AS a
             WHERE a.attrelid = to_regclass(format('%I.truth', space.nspname)) AND attnum > 0 AND NOT attisdropped
               AND has_table_privilege(a.attrelid, 'SELECT')),
       to_regclass(format('%I.landed', space.nspname)) IS NOT NULL
FROM pg_index AS index
JOIN pg_class AS class ON class.oid = index.indrelid
JOIN pg_namespace AS space ON space.oid = class.relnamespace
CROSS JOIN unnest(index.indkey) WITH ORDINALITY AS key (attnum, place)
JOIN pg_attribute AS field ON field.attrelid = class.oid AND field.attnum = key.attnum
WHERE index.indnullsnotdistinct AND index.indisunique AND has_table_privilege(class.oid, 'SELECT')
GROUP BY class.oid, space.nspname, class.relname
ORDER BY space.nspname, class.relname
"""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Rollup:
    """Where the sums are.

    Attributes:
        levels: column names, coarsest first.
        value, count: the columns of the sum, and of how many things it is one.
        has_truth: whether a table `truth` of the same columns, and of when they were told, is beside it.
        has_landed: whether a table `landed` is.
    """

    schema: str
    table: str
    levels: tuple[str, ...]
    value: str
    count: str
    has_truth: bool
    has_landed: bool

    @property
    def name(self) -> str:
        """Schema and table."""
        return f"{self.schema}.{self.table}"

    def path(self, wanted: Mapping[str, str]) -> Path:
        """The names in `wanted`, level by level, up to the first level that is not there."""
        names: list[str] = []
        for level in self.levels:
            if level not in wanted:
                break
            names.append(wanted[level])
        return tuple(names)


@dataclass(frozen=True)
class Sum:
    """A value, exact, and how many things it is the sum of."""

    value: Decimal
    count: int

    def __bool__(self) -> bool:
        return bool(self.value or self.count)

    def __sub__(self, other: Sum) -> Sum:
        return Sum(self.value - other.value, self.count - other.count)


@dataclass(frozen=True)
class Row:
    """One row of a level: what the pipeline holds and what the producer reports, either of which may be missing."""

    name: str
    ours: Sum | None
    truth: Sum | None

    @property
    def difference(self) -> Sum | None:
        """Ours less the producer's; None when the producer reports nothing."""
        if self.truth is None:
            return None
        return (self.ours or Sum(Decimal(0), 0)) - self.truth


@dataclass(frozen=True)
class Level:
    """A node of the hierarchy with its children, all of one moment.

    Attributes:
        parts: `CHILDREN_MAX` children at most.
        more_parts: how many were left out.
        adds_up: whether every level of the whole rollup sums up to its total; None when it is empty, or too large.
        reported_at: when the producer last reported.
    """

    path: Path
    node: Row
    parts: Sequence[Row]
    more_parts: int
    adds_up: bool | None
    reported_at: datetime | None


async def find(connection: Connection) -> list[Rollup]:
    """The rollups of a database that this connection may read."""
    rows = await (await connection.execute(_FIND)).fetchall()
    return [
        Rollup(schema, table, tuple(levels), value, count, {*levels, value, count, "told_at"} <= {*truth}, landed)
        for schema, table, levels, value, count, truth, landed in rows
        if value and count
    ]


async def fetch(connection: Connection, rollup: Rollup, path: Path, adds_up: bool | None) -> Level:
    """The node at `path` and its children. adds_up: of the level."""
    ours = await _sums(connection, _own_sums(rollup, path), path)
    truth, reported_at = {}, None
    if rollup.has_truth:
        truth = await _sums(connection, _reported_sums(rollup, path), path)
        reported_at = await _reported_at(connection, rollup)
        truth = truth if reported_at else {}
    names = sorted(name for name in {*ours, *truth} if name is not None)
    absent = Sum(Decimal(0), 0) if reported_at else None  # what a reporting producer leaves out is zero to it
    rows = [Row(name, ours.get(name), truth.get(name, absent)) for name in names]
    node = Row(path[-1] if path else "", ours.get(None), truth.get(None, absent))
    left_out = max(0, len(rows) - CHILDREN_MAX)
    return Level(path, node, rows[:CHILDREN_MAX], left_out, adds_up, reported_at)


async def _sums(connection: Connection, query: sql.Composed, path: Path) -> dict[str | None, Sum]:
    """By the child's name; None is the node itself."""
    rows = await (await connection.execute(query, path)).fetchall()
    return {name: Sum(value, int(count)) for name, value, count in rows if value is not None}


def _own_sums(rollup: Rollup, path: Path) -> sql.Composed:
    """Rows of the rollup: the node (child NULL) and its children. Finer levels are NULL in both."""
    child = rollup.levels[len(path)] if len(path) < len(rollup.levels) else None
    finer = rollup.levels[len(path) + 1 :]
    return sql.SQL("SELECT {child}, {value}, {count} FROM {table} WHERE {where}").format(
        child=sql.Identifier(child) if child else sql.SQL("NULL::text"),
        value=sql.Identifier(rollup.value),
        count=sql.Identifier(rollup.count),
        table=sql.Identifier(rollup.schema, rollup.table),
        where=_all(
            [*_on_the_path(rollup, path), *(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in finer)]
        ),
    )


def _reported_sums(rollup: Rollup, path: Path) -> sql.Composed:
    """The producer reports leaves: summed up to the node's children, and to the node."""
    child = rollup.levels[len(path)] if len(path) < len(rollup.levels) else None
    return sql.SQL("SELECT {child}, sum({value}), sum({count}) FROM {table} WHERE {where} GROUP BY {groups}").format(
        child=sql.Identifier(child) if child else sql.SQL("NULL::text"),
        value=sql.Identifier(rollup.value),
        count=sql.Identifier(rollup.count),
        table=sql.Identifier(rollup.schema, "truth"),
        where=_all(_on_the_path(rollup, path)),
        groups=sql.SQL("ROLLUP ({})").format(sql.Identifier(child)) if child else sql.SQL("()"),
    )


def _on_the_path(rollup: Rollup, path: Path) -> list[sql.Composable]:
    return [sql.SQL("{} = %s").format(sql.Identifier(level)) for level in rollup.levels[: len(path)]]


def _all(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")


async def _reported_at(connection: Connection, rollup: Rollup) -> datetime | None:
    query = sql.SQL("SELECT max(told_at) FROM {}").format(sql.Identifier(rollup.schema, "truth"))
    row = await (await connection.execute(query)).fetchone()
    assert row is not None, "an aggregate without groups always has its row"
    return cast("datetime | None", row[0])
