"""Tables of the pipelines page by page, each row with the record that last changed the row.

With a primary key, a page starts at a key, so that the millionth page costs as much as the first. Tables without a key, and
views, are paged by position.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from onefold.dashboard.reader import Connection
from onefold.operate.explain import rows as rows_of

PAGE_ROWS = 50
TEXT_MAX = 300  # shown characters of a value, because a value in a dead letter may have 64 KiB
POSITION_MAX = 100_000  # rows that a page by position may skip, because PostgreSQL reads all of them
ORIGIN = ("topic", "partition", "offset")

_TABLES = """
SELECT space.nspname, class.relname, class.relkind = 'v', greatest(class.reltuples, 0)::bigint
FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE class.relkind IN ('r', 'p', 'v', 'm') AND space.nspname = ANY (%s)
  AND has_schema_privilege(space.oid, 'USAGE') AND has_table_privilege(class.oid, 'SELECT')
ORDER BY array_position(%s, space.nspname::text), class.relkind = 'v', class.relname
"""
# `indkey` is numbered from 0.
_COLUMNS = """
SELECT field.attname, format_type(field.atttypid, NULL), array_position(key.indkey::int2[], field.attnum) + 1
FROM pg_attribute AS field
LEFT JOIN pg_index AS key ON key.indrelid = field.attrelid AND key.indisprimary
WHERE field.attrelid = to_regclass(%s) AND field.attnum > 0 AND NOT field.attisdropped
ORDER BY field.attnum
"""
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


@dataclass(frozen=True)
class DatabaseTable:
    """A table or a view.

    Attributes:
        rows: the planner's estimate, 0 if unknown.
    """

    schema: str
    name: str
    is_view: bool
    rows: int


@dataclass(frozen=True)
class TableColumn:
    """A column.

    Attributes:
        key: position in the primary key, from 1, or None.
    """

    name: str
    type: str
    key: int | None

    @property
    def is_number(self) -> bool:
        """Whether the page aligns the column as numbers."""
        return self.type in _NUMBERS


@dataclass(frozen=True)
class RowPage:
    """A page of rows as PostgreSQL's text.

    Attributes:
        origins: topic/partition/offset of each row, or None.
        links: per row the key for the row's explanation, without NULL parts; None without a key.
        key: columns that identify a row; empty if none do.
        before, after: place of the previous and of the next page; None at the ends.
    """

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[str | None]]
    origins: Sequence[str] | None
    links: Sequence[dict[str, str] | None]
    key: Sequence[str]
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PageStart:
    """Start of a page.

    Attributes:
        kind: "first", "after", "before" or "from" a key, or "skip" a number of rows.
        values: parts of the key, or the number of rows.
    """

    kind: str = "first"
    values: tuple[str, ...] = ()


def place_of(asked: dict[str, str]) -> PageStart:
    """Parse the place from an address. Raises ValueError for a place that no page links to."""
    for kind in ("after", "before"):
        if kind in asked:
            values = json.loads(asked[kind])
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise ValueError(f"{kind} should be a list of texts")
            return PageStart(kind, tuple(values))
    if "skip" in asked:
        return PageStart("skip", (str(min(POSITION_MAX, max(0, int(asked["skip"])))),))
    return PageStart("from", (asked["from"],)) if asked.get("from") else PageStart()


async def find(connection: Connection, schemas: Sequence[str]) -> list[DatabaseTable]:
    """List the readable tables and views in these schemas, in the order of the schemas."""
    found = await connection.execute(_TABLES, (list(schemas), list(schemas)))
    return [DatabaseTable(*row) for row in await found.fetchall()]


async def page(connection: Connection, table: DatabaseTable, place: PageStart) -> RowPage:
    """Fetch one page. Raises psycopg.DataError if a value in `place` does not fit the key's type, ValueError for a wrong
    number of values."""
    where = sql.Identifier(table.schema, table.name)
    named = where.as_string(connection)
    keyed = await (await connection.execute(rows_of.COLUMNS, {"table": named})).fetchall()
    unique = [name for name, _, _, place in keyed if place is not None]
    columns = [TableColumn(*row) for row in await (await connection.execute(_COLUMNS, (named,))).fetchall()]
    key = sorted((column for column in columns if column.key is not None), key=lambda column: column.key or 0)
    if key and place.kind != "skip":
        rows, earlier, later = await _by_key(connection, where, columns, key, place)
        ends = (_key_of(columns, key, rows[0]), _key_of(columns, key, rows[-1])) if rows else (None, None)
        return _page(columns, unique, rows, ends[0] if earlier else None, ends[1] if later else None)
    rows, skipped, later = await _by_position(connection, where, columns, place)
    following = str(skipped + PAGE_ROWS) if later and skipped + PAGE_ROWS <= POSITION_MAX else None
    return _page(columns, unique, rows, str(max(0, skipped - PAGE_ROWS)) if skipped else None, following)


Rows = list[tuple[str | None, ...]]


async def _by_key(
    connection: Connection,
    where: sql.Composable,
    columns: Sequence[TableColumn],
    key: Sequence[TableColumn],
    place: PageStart,
) -> tuple[Rows, bool, bool]:
    """(rows, whether there are rows before, whether there are rows after)."""
    backwards = place.kind == "before"
    compared = key[: len(place.values)] if place.kind == "from" else key
    if place.values and len(place.values) != len(compared):
        raise ValueError("the key has another number of columns")
    condition: sql.Composable = sql.SQL("true")
    if place.values:
        condition = sql.SQL("({}) {} ({})").format(
            sql.SQL(", ").join(_field(column) for column in compared),
            sql.SQL({"after": ">", "before": "<", "from": ">="}[place.kind]),
            sql.SQL(", ").join(sql.SQL("%s::{}").format(sql.SQL(column.type)) for column in compared),
        )
    order = sql.SQL(", ").join(sql.SQL("{} DESC" if backwards else "{}").format(_field(column)) for column in key)
    query = sql.SQL("SELECT {} FROM {} AS stored WHERE {} ORDER BY {} LIMIT {}").format(
        _as_text(columns), where, condition, order, PAGE_ROWS + 1
    )
    found = await (await connection.execute(query, place.values)).fetchall()
    more, rows = len(found) > PAGE_ROWS, found[:PAGE_ROWS]
    return (rows[::-1], more, True) if backwards else (rows, bool(place.values), more)


async def _by_position(
    connection: Connection, where: sql.Composable, columns: Sequence[TableColumn], place: PageStart
) -> tuple[Rows, int, bool]:
    """(rows, number of skipped rows, whether there are rows after). Ordered by all sortable columns."""
    skipped = int(place.values[0]) if place.kind == "skip" else 0
    sortable = [column for column in columns if column.type not in ("json", "xml")]
    order = sql.SQL(", ").join(sql.SQL("{} NULLS FIRST").format(_field(column)) for column in sortable)
    query = sql.SQL("SELECT {} FROM {} AS stored ORDER BY {} LIMIT {} OFFSET {}").format(
        _as_text(columns), where, order, PAGE_ROWS + 1, skipped
    )
    found = await (await connection.execute(query)).fetchall()
    return found[:PAGE_ROWS], skipped, len(found) > PAGE_ROWS


def _as_text(columns: Sequence[TableColumn]) -> sql.Composable:
    """Select key columns whole, because they link to the next page, and TEXT_MAX characters of each further column."""
    return sql.SQL(", ").join(
        sql.SQL("{}::text" if column.key is not None else "left({}::text, {})").format(
            _field(column), *([] if column.key is not None else [TEXT_MAX])
        )
        for column in columns
    )


def _field(column: TableColumn) -> sql.Composable:
    """Name the stored column, because the text selected under the same name sorts "10" before "9"."""
    return sql.Identifier("stored", column.name)


def _key_of(columns: Sequence[TableColumn], key: Sequence[TableColumn], row: Sequence[str | None]) -> str:
    return json.dumps([row[columns.index(column)] for column in key], ensure_ascii=False)


def _page(
    columns: Sequence[TableColumn], unique: list[str], rows: Rows, before: str | None, after: str | None
) -> RowPage:
    """Merge the three columns of the origin into one. `unique`: the columns that identify a row."""
    names = [column.name for column in columns]
    links = [_link(columns, unique, row) for row in rows]
    if not set(ORIGIN) <= set(names) or any(column.key is not None for column in columns if column.name in ORIGIN):
        return RowPage(columns, rows, None, links, unique, before, after)
    at = [names.index(name) for name in ORIGIN]
    kept = [index for index in range(len(columns)) if index not in at]
    return RowPage(
        [columns[index] for index in kept],
        [[row[index] for index in kept] for row in rows],
        ["/".join(str(row[index]) for index in at) for row in rows],
        links,
        unique,
        before,
        after,
    )


def _link(columns: Sequence[TableColumn], unique: list[str], row: Sequence[str | None]) -> dict[str, str] | None:
    """None if no column identifies the row, or a key value is so long that it may have been cut."""
    found: dict[str, str] = {}
    for column, value in zip(columns, row, strict=True):
        if column.name in unique and value is not None:
            if len(value) >= TEXT_MAX:
                return None
            found[column.name] = value
    return found if unique else None
