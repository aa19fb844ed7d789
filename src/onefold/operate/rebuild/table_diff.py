"""Make tables of one database equal to tables of another, row by row, in the caller's transaction.

Only differing rows are written. Readers see the old rows until the commit, and wait for nothing. Views, rights and foreign keys
stay, and equal rows cost no write. The tables must not change meanwhile, so other writers wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.operate.merge_sql import ORIGIN

#: Rows of each table in a report.
EXAMPLES_MAX = 5

# The writable columns with their types, without generated and identity columns.
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''
ORDER BY attnum
"""
# The primary key, or else the first unique index of plain columns that rejects equal rows with NULLs.
_KEY = """
SELECT array(SELECT attname FROM pg_attribute, unnest((indkey::int2[])[0:indnkeyatts - 1]) AS number
             WHERE attrelid = indrelid AND attnum = number)::text[]
FROM pg_index
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
  AND (indnullsnotdistinct OR NOT EXISTS (
      SELECT FROM pg_attribute, unnest((indkey::int2[])[0:indnkeyatts - 1]) AS number
      WHERE attrelid = indrelid AND attnum = number AND NOT attnotnull))
ORDER BY indisprimary DESC, indexrelid LIMIT 1
"""


@dataclass(frozen=True)
class ComparedColumn:
    """A column in both databases."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True)
class ComparedTable:
    """A table, or a part of one, in both databases.

    Attributes:
        name: as written in a statement.
        columns: the columns to compare and write; other columns of a new row get their defaults.
        key: the names of the columns that identify a row.
        where: a condition for the rows. None: all.
        begun: (topic, partition, offset): rows with an earlier origin in such a partition are left out, in both databases.
            Without effect for a table without origin columns.
    """

    name: str
    columns: tuple[ComparedColumn, ...]
    key: tuple[str, ...]
    where: sql.Composable | None = None
    begun: tuple[tuple[str, int, int], ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def values(self) -> list[str]:
        """The names of the columns that are neither key nor origin columns."""
        return [name for name in self.names if name not in self.key and name not in ORIGIN]


@dataclass(frozen=True)
class Difference:
    """A differing row.

    Attributes:
        kind: changed, added or deleted, in the live table.
        key: the key columns, with values as texts.
        columns: of a changed row: the old and the new text of each differing column.
    """

    kind: str
    key: dict[str, str | None]
    columns: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Replaced:
    """The result for a table.

    Attributes:
        rows: the number of rows now; with `begun`, without the rows that are left out.
        changed: rows with a differing value.
        moved: rows that differ only in their origin.
        examples: a few changed, deleted and added rows.
    """

    table: str
    rows: int
    changed: int = 0
    added: int = 0
    deleted: int = 0
    moved: int = 0
    examples: tuple[Difference, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the contents changed for readers."""
        return bool(self.changed or self.added or self.deleted)


def described(connection: psycopg.Connection[Any], name: str) -> ComparedTable:
    """Read the columns and the key of a table. The key is empty if there is none."""
    columns = tuple(ComparedColumn(*row) for row in connection.execute(_COLUMNS, (name,)).fetchall())
    key = connection.execute(_KEY, (name,)).fetchone()
    known = {column.name for column in columns}
    return ComparedTable(name, columns, tuple(key[0]) if key and known.issuperset(key[0]) else ())


def same(live: ComparedTable, other: ComparedTable) -> ComparedTable:
    """The table, if equal in both databases. Raises UserError (exit code 3) with the difference."""
    theirs = {column.name: column.type for column in other.columns}
    for column in live.columns:
        if theirs.get(column.name) != column.type:
            there = f"is {theirs[column.name]}" if column.name in theirs else "is not there"
            raise _unlike(live.name, f"has the column {column.name} {column.type}, which by sql/schema {there}")
    if missing := theirs.keys() - {column.name for column in live.columns}:
        raise _unlike(live.name, f"lacks the column {min(missing)} of sql/schema")
    if set(live.key) != set(other.key):
        keys = [f"({', '.join(key)})" if key else "none" for key in (live.key, other.key)]
        raise _unlike(live.name, f"has the key {keys[0]}, and by sql/schema {keys[1]}")
    return live


def _unlike(table: str, what: str) -> UserError:
    return UserError(
        Code.TABLE_DIFFERS, f"{table} {what}", "Alter the table, or its schema file, and ask again.", REFUSED
    )


def replace_rows(
    live: psycopg.Connection[Any], other: psycopg.Connection[Any], table: ComparedTable, number: int
) -> Replaced:
    """Write the differences from `other` to the table in `live`, in transactions of the caller.

    Args:
        number: of the table within the transaction.

    Raises:
        psycopg.Error: a type without comparison, a constraint, or a server that does not answer.
    """
    names, stage = _list(table.names), sql.Identifier("pg_temp", f"onefold_rebuilt_{number}")
    made = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
    live.execute(made.format(stage, names, sql.SQL(table.name)))
    where = sql.SQL(" WHERE {}").format(table.where) if table.where else sql.SQL("")
    out = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(names, sql.SQL(table.name), where)
    with (
        other.cursor().copy(out) as rows,
        live.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(stage)) as into,
    ):
        for data in rows:
            into.write(data)
    live.execute(sql.SQL("ANALYZE {}").format(stage))
    return _Statements(table, stage).run(live)


class _Statements:
    """The statements that compare a table (alias `held`) with its stage (alias `wanted`)."""

    def __init__(self, table: ComparedTable, stage: sql.Composable) -> None:
        self._table = table
        self._stage = stage
        self._name = sql.SQL(table.name)
        nullable = {column.name for column in table.columns if column.nullable}
        self._same = sql.SQL(" AND ").join(_equal(name, name in nullable) for name in table.key)
        self._mine = sql.SQL(" AND ({})").format(table.where) if table.where else sql.SQL("")
        dated = bool(table.begun) and set(ORIGIN) <= set(table.names)
        earlier = {alias: _earlier(alias, table.begun) if dated else sql.SQL("false") for alias in ("held", "wanted")}
        self._late = {alias: sql.SQL(" AND NOT {}").format(one) for alias, one in earlier.items()}
        self._either = sql.SQL(" AND NOT ({held} AND {wanted})").format(**earlier)

    def run(self, live: psycopg.Connection[Any]) -> Replaced:
        table = self._table
        examples = tuple(islice(self._examples(live), EXAMPLES_MAX))
        deleted = live.execute(
            sql.SQL("DELETE FROM {} AS held WHERE NOT EXISTS (SELECT FROM {} AS wanted WHERE {}){}{}").format(
                self._name, self._stage, self._same, self._mine, self._late["held"]
            )
        ).rowcount
        changed = self._update(live, table.values) if table.values else 0
        origins = [name for name in table.names if name in ORIGIN and name not in table.key]
        moved = self._update(live, origins) if origins else 0
        added = live.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM {} AS wanted WHERE NOT EXISTS (SELECT FROM {} AS held WHERE {}){}"
            ).format(
                *(self._name, _list(table.names), _list(table.names, "wanted"), self._stage),
                *(self._name, self._same, self._late["wanted"]),
            )
        ).rowcount
        counted = sql.SQL("SELECT count(*) FROM {} AS wanted WHERE true{}").format(self._stage, self._late["wanted"])
        (rows,) = live.execute(counted).fetchone() or (0,)
        return Replaced(table.name, rows, changed, added, deleted, moved, examples)

    def _update(self, live: psycopg.Connection[Any], differing: Sequence[str]) -> int:
        """Update the whole row if one of these columns differs: a row with a differing value also has a different origin."""
        written = [name for name in self._table.names if name not in self._table.key]
        sets = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("wanted", name)) for name in written
        )
        return live.execute(
            sql.SQL("UPDATE {} AS held SET {} FROM {} AS wanted WHERE {} AND {}{}").format(
                self._name, sets, self._stage, self._same, _distinct(differing), self._either
            )
        ).rowcount

    def _examples(self, live: psycopg.Connection[Any]) -> Iterator[Difference]:
        """Yield examples of differences. Call before any write."""
        values = self._table.values
        if values:
            columns = [*_texts("held", self._table.key), *_texts("held", values), *_texts("wanted", values)]
            asked = sql.SQL("SELECT {} FROM {} AS held JOIN {} AS wanted ON {} WHERE {}{} LIMIT {}").format(
                sql.SQL(", ").join(columns),
                self._name,
                self._stage,
                self._same,
                _distinct(values),
                self._either,
                sql.Literal(EXAMPLES_MAX),
            )
            for row in live.execute(asked).fetchall():
                key, rest = row[: len(self._table.key)], row[len(self._table.key) :]
                pairs = zip(values, rest[: len(values)], rest[len(values) :], strict=True)
                wrong = {name: (was, now) for name, was, now in pairs if was != now}
                yield Difference("changed", dict(zip(self._table.key, key, strict=True)), wrong)
        yield from self._missing(live, "deleted", ("held", self._name), ("wanted", self._stage), self._mine)
        yield from self._missing(live, "added", ("wanted", self._stage), ("held", self._name), sql.SQL(""))

    def _missing(
        self,
        live: psycopg.Connection[Any],
        kind: str,
        here: tuple[str, sql.Composable],
        there: tuple[str, sql.Composable],
        mine: sql.Composable,
    ) -> Iterator[Difference]:
        asked = sql.SQL("SELECT {} FROM {} AS {} WHERE NOT EXISTS (SELECT FROM {} AS {} WHERE {}){}{} LIMIT {}").format(
            sql.SQL(", ").join(_texts(here[0], self._table.key)),
            *(here[1], sql.Identifier(here[0]), there[1], sql.Identifier(there[0])),
            *(self._same, mine, self._late[here[0]], sql.Literal(EXAMPLES_MAX)),
        )
        for row in live.execute(asked).fetchall():
            yield Difference(kind, dict(zip(self._table.key, row, strict=True)))


def _earlier(alias: str, begun: Sequence[tuple[str, int, int]]) -> sql.Composable:
    """Whether the row's origin is before these offsets. False for a row without an origin in these partitions."""
    began = sql.SQL(", ").join(sql.SQL("({}, {}, {})").format(*map(sql.Literal, place)) for place in begun)
    return sql.SQL(
        'EXISTS (SELECT FROM (VALUES {0}) AS began (topic, partition, "offset") WHERE began.topic = {1}.topic'
        ' AND began.partition = {1}.partition AND {1}."offset" < began."offset")'
    ).format(began, sql.Identifier(alias))


def _equal(name: str, nullable: bool) -> sql.Composable:
    held, wanted = sql.Identifier("held", name), sql.Identifier("wanted", name)
    if not nullable:
        return sql.SQL("{} = {}").format(held, wanted)
    # Equivalent to IS NOT DISTINCT FROM, in a form that PostgreSQL can use for hash and merge joins.
    return sql.SQL("({0} IS NULL) = ({1} IS NULL) AND coalesce({0}::text, '') = coalesce({1}::text, '')").format(
        held, wanted
    )


def _distinct(names: Sequence[str]) -> sql.Composable:
    return sql.SQL("({}) IS DISTINCT FROM ({})").format(_row("held", names), _row("wanted", names))


def _row(alias: str, names: Sequence[str]) -> sql.Composable:
    return sql.SQL("ROW({})").format(_list(names, alias))


def _list(names: Sequence[str], *alias: str) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(*alias, name) for name in names)


def _texts(alias: str, names: Sequence[str]) -> list[sql.Composable]:
    return [sql.SQL("{}::text").format(sql.Identifier(alias, name)) for name in names]


def part_of(table: ComparedTable, names: Sequence[str], where: sql.Composable) -> ComparedTable:
    """A part of a table: some rows, and some columns."""
    return replace(table, columns=tuple(column for column in table.columns if column.name in names), where=where)
