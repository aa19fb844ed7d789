"""Read a row of a table by its key: values as texts, origin, batch, and the sink's rejected records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from onefold import postgres
from onefold.config.errors import UserError, first_line
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate.explain.explanation import SinkBatch
from onefold.operate.merge_sql import ORIGIN
from onefold.operate.record_reader import RecordPlace, Stored

#: Columns of a table or view: name, type, whether it may be NULL, and its place in the key or NULL. The key is the primary key,
#: or else the first unique index of plain columns.
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
# An indexed query is fast, but a view may have to aggregate its tables.
_SETTINGS = {**postgres.READ_ONLY, "statement_timeout": "10s"}
# The batch with the last start at or before the record.
_BATCH = """
SELECT writer, landed_at, first_offset, next_offset FROM onefold.batch
WHERE sink = %s AND topic = %s AND partition = %s AND topic_id = %s AND first_offset <= %s ORDER BY first_offset DESC LIMIT 1
"""
_TEXTS = ("text", "character varying", "character")
# The newest rejected records. More of them usually have the same cause.
REJECTED_MAX = 200


class KeyColumn(NamedTuple):
    """A column. `place`: the position in the key, or None."""

    name: str
    type: str
    nullable: bool
    place: int | None


@dataclass(frozen=True)
class FoundRow:
    """The result of the search for a row.

    Attributes:
        key: the columns of the key, and their values.
        values: of all columns, as PostgreSQL prints them; None: the row does not exist.
        origin: the source record according to the row. None: the table has no origin columns.
    """

    columns: tuple[KeyColumn, ...]
    key: Mapping[str, str | None]
    values: dict[str, str | None] | None
    origin: RecordPlace | None


@dataclass(frozen=True)
class RowIdentity:
    """The common properties of a row's records.

    Attributes:
        texts: the key columns of the row. A NULL column stands for all values, as in a table of sums, and is left out.
        values: the fields with these names in the row's own record. A text column has the text of the row, because the last
            record of a sum may have moved from this row to another, and then names the other row.
        kafka_key: the key of the row's own record. It is compared if a record lacks a field, because the merge computes the
            column.
    """

    texts: Mapping[str, str]
    values: Mapping[str, Any]
    kafka_key: bytes | None

    @staticmethod
    def of(row: FoundRow, fields: Mapping[str, Any] | None = None, kafka_key: bytes | None = None) -> RowIdentity:
        """Create the identity from a row and its record, or from the requested key."""
        texts = {name: value for name, value in row.key.items() if value is not None}
        types = {column.name: column.type for column in row.columns}
        values = {
            name: texts[name] if types[name] in _TEXTS else value
            for name, value in (fields or {}).items()
            if name in texts
        }
        return RowIdentity(texts, values, kafka_key)

    def has(self, stored: Stored, fields: Mapping[str, Any] | None) -> bool:
        """Whether a record belongs to the row. `fields`: None if the record is undecodable."""
        known = {name: fields[name] for name in self.texts if name in fields} if fields is not None else {}
        if not all(self._is_same(name, value) for name, value in known.items()):
            return False
        if fields is not None and len(known) == len(self.texts):
            return True
        return self.kafka_key is not None and stored.key == self.kafka_key

    def _is_same(self, name: str, value: Any) -> bool:
        spelled = {True: "t", False: "f"}[value] if isinstance(value, bool) else str(value)
        return spelled == self.texts[name] or (name in self.values and value == self.values[name])


class RejectedOutput(NamedTuple):
    """An output record that the sink rejected, and the reason."""

    place: RecordPlace
    reason: str
    value: bytes | None
    at: datetime


@contextmanager
def reading(dsn: str, role: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """Open a read-only connection with one snapshot.

    Args:
        role: the role to assume for its rights, if the login may.

    Raises:
        psycopg.Error: PostgreSQL does not answer.
    """
    with postgres.connect(dsn, "onefold explain", settings=_SETTINGS) as made:
        if role is not None:
            with suppress(psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege):
                made.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        made.isolation_level, made.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
        with made.transaction():
            yield made


def find(connection: psycopg.Connection[Any], schema: str, name: str, given: Mapping[str, str]) -> FoundRow:
    """Find the row with these key values. A nullable key column without a given value is NULL.

    Raises:
        UserError: the table does not exist, or the key does not match the table.
    """
    table = sql.Identifier(schema, name)
    found = connection.execute(COLUMNS, {"table": table.as_string(connection)}).fetchall()
    columns = tuple(KeyColumn(*row) for row in found)
    if not columns:
        raise UserError(
            Code.TABLE_MISSING, f"there is no table {schema}.{name}", "`onefold migrate` makes the tables.", USAGE
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
        return FoundRow(columns, key, None, None)
    values = dict(zip((column.name for column in columns), rows[0], strict=True))
    return FoundRow(columns, key, values, _origin(values))


def _key(table: str, columns: Sequence[KeyColumn], given: Mapping[str, str]) -> dict[str, str | None]:
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
    columns: Sequence[KeyColumn],
    key: Mapping[str, str | None],
) -> list[tuple[Any, ...]]:
    types = {column.name: column.type for column in columns}
    conditions = [_condition(name, types[name], value) for name, value in key.items()]
    asked = sql.SQL("SELECT {} FROM {} AS stored WHERE {} LIMIT 2").format(
        sql.SQL(", ").join(sql.SQL("stored.{}::text").format(sql.Identifier(column.name)) for column in columns),
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
    # The type name comes from the catalogue.
    return sql.SQL("{} = CAST({} AS {})").format(column, value, sql.SQL(kind))


def _origin(values: Mapping[str, str | None]) -> RecordPlace | None:
    texts = [value for name in ORIGIN if (value := values.get(name)) is not None]
    return RecordPlace.found("/".join(texts)) if len(texts) == len(ORIGIN) else None


def batch(connection: psycopg.Connection[Any], sink: str, place: RecordPlace, topic_id: str) -> SinkBatch | None:
    """Find the batch that wrote a record in `onefold.batch`. None: the batch is not there (any more), or the login may not read
    the table.

    Args:
        topic_id: of the topic that was written: a recreated topic has different records at these offsets.
    """
    allowed = connection.execute("SELECT has_table_privilege(to_regclass('onefold.batch'), 'SELECT')").fetchone()
    if allowed != (True,):
        return None
    found = connection.execute(_BATCH, (sink, place.topic, place.partition, topic_id, place.offset)).fetchone()
    if found is None or found[3] <= place.offset:
        return None
    writer, landed_at, first_offset, next_offset = found
    return SinkBatch(writer, landed_at.isoformat(), first_offset, next_offset)


def rejected(connection: psycopg.Connection[Any], sink: str) -> list[RejectedOutput]:
    """The newest records that the sink rejected, at most `REJECTED_MAX`; [] before the tables of the sink exist."""
    if connection.execute("SELECT to_regclass('onefold.rejected')").fetchone() == (None,):
        return []
    asked = (
        'SELECT topic, partition, "offset", reason, value, rejected_at FROM onefold.rejected WHERE sink = %s'
        " ORDER BY rejected_at DESC LIMIT %s"
    )
    return [
        RejectedOutput(RecordPlace(*row[:3]), *row[3:])
        for row in connection.execute(asked, (sink, REJECTED_MAX)).fetchall()
    ]
