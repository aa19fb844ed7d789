"""One row of a table, by its key: its values as texts, the record that it came from, and the transaction that wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from onefold import postgres
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate.errors import UserError, first_line
from onefold.operate.merges import ORIGIN
from onefold.operate.reading import Place

#: Columns of a table or view: name, type, whether it may be NULL, and its place in the key or NULL. The key is the primary key,
#: or else the first unique index of columns alone.
COLUMNS = """
WITH key AS (
    SELECT (indkey::int2[])[0:indnkeyatts - 1] AS columns FROM pg_index
    WHERE indrelid = to_regclass(%(table)s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
    ORDER BY indisprimary DESC, indexrelid LIMIT 1
)
SELECT field.attname, format_type(field.atttypid, NULL), NOT field.attnotnull,
       array_position(key.columns, field.attnum)
FROM pg_attribute AS field LEFT JOIN key ON true
WHERE field.attrelid = to_regclass(%(table)s) AND field.attnum > 0 AND NOT field.attisdropped
ORDER BY field.attnum
"""
# One question over an index; a view may have to add up its tables.
_SETTINGS = {**postgres.READ_ONLY, "statement_timeout": "10s"}
# Of what was set aside: the newest. A thousand have one cause.
REJECTED_MAX = 200


class Column(NamedTuple):
    """A column. `place`: in the key, or None."""

    name: str
    type: str
    nullable: bool
    place: int | None


@dataclass(frozen=True)
class Row:
    """A row that was looked for.

    Attributes:
        key: the columns of the key that tell it from others, and their values.
        values: of all columns, as Postgres writes them; None: there is no such row.
        origin: the record that it says it came from. None: the table does not keep that.
        transaction: Postgres's number of the transaction that wrote it. None of a view's.
        committed_at: when that was; None: Postgres does not keep it (track_commit_timestamp).
    """

    columns: tuple[Column, ...]
    key: Mapping[str, str | None]
    values: Mapping[str, str | None] | None
    origin: Place | None
    transaction: str | None
    committed_at: datetime | None


class Rejected(NamedTuple):
    """An output record that was set aside, and why."""

    place: Place
    reason: str
    value: bytes | None
    at: datetime


@contextmanager
def reading(dsn: str, role: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """A connection that cannot write, in one snapshot.

    Args:
        role: whose rights to take on, where that is possible.

    Raises:
        psycopg.Error: Postgres does not answer.
    """
    with postgres.connect(dsn, "onefold explain", settings=_SETTINGS) as made:
        if role is not None:
            with suppress(psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege):
                made.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        made.isolation_level, made.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
        with made.transaction():
            yield made


def find(connection: psycopg.Connection[Any], schema: str, name: str, given: Mapping[str, str]) -> Row:
    """The row with these values of its key. A key column that may be NULL, and is not given, is NULL.

    Raises:
        UserError: there is no such table, or the key is none of its.
    """
    table = sql.Identifier(schema, name)
    found = connection.execute(COLUMNS, {"table": table.as_string(connection)}).fetchall()
    columns = tuple(Column(*row) for row in found)
    if not columns:
        raise UserError(
            Code.TABLE_MISSING, f"there is no table {schema}.{name}", "`onefold prepare` makes the tables.", USAGE
        )
    key = _key(f"{schema}.{name}", columns, given)
    rows = _rows(connection, table, columns, key)
    if len(rows) > 1:
        raise UserError(
            Code.KEY_WRONG,
            f"several rows of {schema}.{name} have that key",
            "The view has no key; name more columns.",
            USAGE,
        )
    if not rows:
        return Row(columns, key, None, None, None, None)
    *texts, transaction, committed_at = rows[0]
    values = dict(zip((column.name for column in columns), texts, strict=True))
    return Row(columns, key, values, _origin(values), transaction, committed_at)


def _key(table: str, columns: Sequence[Column], given: Mapping[str, str]) -> dict[str, str | None]:
    key = sorted((column for column in columns if column.place is not None), key=lambda column: column.place or 0)
    names = [column.name for column in key or columns]
    if unknown := [name for name in given if name not in names]:
        raise UserError(
            Code.KEY_WRONG, f"{unknown[0]} is no key column of {table}", f"Its key is: {', '.join(names)}.", USAGE
        )
    if not key:
        return dict(given)
    if missing := [column.name for column in key if not column.nullable and column.name not in given]:
        example = " ".join(f"{name}=…" for name in names)
        raise UserError(
            Code.KEY_WRONG,
            f"the key of {table} has {missing[0]} too",
            f"Write: onefold explain {table} {example}",
            USAGE,
        )
    return {column.name: given.get(column.name) for column in key}


def _rows(
    connection: psycopg.Connection[Any],
    table: sql.Composable,
    columns: Sequence[Column],
    key: Mapping[str, str | None],
) -> list[tuple[Any, ...]]:
    types = {column.name: column.type for column in columns}
    conditions = [_condition(name, types[name], value) for name, value in key.items()]
    asked = sql.SQL("SELECT {}, {}, {} FROM {} AS stored WHERE {} LIMIT 2").format(
        sql.SQL(", ").join(sql.SQL("stored.{}::text").format(sql.Identifier(column.name)) for column in columns),
        *_written(connection, table),
        table,
        sql.SQL(" AND ").join(conditions or [sql.SQL("true")]),
    )
    try:
        return connection.execute(asked).fetchall()
    except psycopg.DataError as error:
        raise UserError(Code.KEY_WRONG, f"the table has no such key: {first_line(error)}", exit_code=USAGE) from None


def _condition(name: str, kind: str, value: str | None) -> sql.Composable:
    column = sql.Identifier("stored", name)
    if value is None:
        return sql.SQL("{} IS NULL").format(column)
    # The type is as the catalogue spells it, and nobody else's text.
    return sql.SQL("{} = CAST({} AS {})").format(column, value, sql.SQL(kind))


def _written(connection: psycopg.Connection[Any], table: sql.Composable) -> tuple[sql.SQL, sql.SQL]:
    """The transaction of a row and when it was committed, as far as Postgres knows. A view's rows were written by nobody."""
    kind = connection.execute(
        "SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", (table.as_string(connection),)
    )
    if (kind.fetchone() or ("",))[0] not in ("r", b"r"):
        return sql.SQL("NULL"), sql.SQL("NULL")
    kept = connection.execute("SELECT current_setting('track_commit_timestamp')").fetchone() == ("on",)
    return sql.SQL("stored.xmin::text"), sql.SQL("pg_xact_commit_timestamp(stored.xmin)" if kept else "NULL")


def _origin(values: Mapping[str, str | None]) -> Place | None:
    texts = [value for name in ORIGIN if (value := values.get(name)) is not None]
    return Place.found("/".join(texts)) if len(texts) == len(ORIGIN) else None


def rejected(connection: psycopg.Connection[Any], sink: str) -> list[Rejected]:
    """The newest records that the sink could not land, at most `REJECTED_MAX`; [] before its first table was made."""
    if connection.execute("SELECT to_regclass('onefold.rejected')").fetchone() == (None,):
        return []
    asked = (
        'SELECT topic, partition, "offset", reason, value, rejected_at FROM onefold.rejected WHERE sink = %s'
        " ORDER BY rejected_at DESC LIMIT %s"
    )
    return [Rejected(Place(*row[:3]), *row[3:]) for row in connection.execute(asked, (sink, REJECTED_MAX)).fetchall()]
