"""The verifier's queries in the database. A continuous verifier reads only new rows, some keys or blocks of a large table."""

from collections.abc import Iterable, Iterator
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.types.string import TextLoader

from onefold import postgres
from onefold.error_codes import Code
from onefold.verify.column_types import KINDS
from onefold.verify.expect import Table
from onefold.verify.invariants import Invariant, broken
from onefold.verify.verdict import CannotTell, Finding

#: The time limit for a query blocked by other sessions, in seconds. A verdict has a time limit, and can be repeated.
PATIENCE_S = 5.0
# The rows fetched at once: some megabytes.
_FETCH = 10_000
# The keys in one query: the limit for one message, and for a plan as a join over the index.
_KEYS_AT_ONCE = 5_000

Row = tuple[Any, ...]

#: The columns with the place of the output record of a row, and their types.
ORIGIN = {"topic": "text", "partition": "integer", "offset": "bigint"}


# Whether a unique index excludes two rows with the same key, including NULLs.
_ONE_A_KEY = """
SELECT 1 FROM pg_index AS i
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
  AND NOT EXISTS (
      SELECT 1 FROM unnest(indkey::int2[]) WITH ORDINALITY AS k (number, place)
      JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
      WHERE place <= indnkeyatts AND (attname <> ALL (%s) OR NOT (attnotnull OR indnullsnotdistinct))
  )
"""

# The columns of a table, their types without modifiers, and whether PostgreSQL computes them. For a domain, the type is its
# base type. The query reads the catalog, since information_schema hides tables from a role without the right to read.
_COLUMNS = """
SELECT attname, format_type(CASE typtype WHEN 'd' THEN typbasetype ELSE t.oid END, NULL), attgenerated <> ''
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
# PostgreSQL truncates longer names, but never within a character.
_NAME_BYTES = 63

# The tables in a schema, and the tables with these names, with their columns; partitions are parts of a table.
_TABLES = """
SELECT nspname || '.' || relname, array_agg(attname::text ORDER BY attnum)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace JOIN pg_attribute ON attrelid = c.oid
WHERE relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND NOT attisdropped
  AND (nspname = %s OR nspname || '.' || relname = ANY (%s))
GROUP BY 1 ORDER BY 1
"""

# If a row security policy hides rows from this role, a query fails instead of returning part of the table.
_SETTINGS = {**postgres.READ_ONLY, "row_security": "off"}


class _Unpadded(TextLoader):
    """The value of a `character(n)`, without the meaningless spaces at its end."""

    def load(self, data: Any) -> str:
        """Return the text without trailing spaces."""
        return str(super().load(data)).rstrip(" ")


class DatabaseSnapshot:
    """A snapshot of the database: all queries see the same commits.

    Args:
        patience_s: the time limit for a query blocked by other sessions, for example by a lock.
    """

    def __init__(self, dsn: str, patience_s: float = PATIENCE_S) -> None:
        try:
            self._connection = postgres.connect(
                dsn, "onefold verify", autocommit=False, settings=_SETTINGS, patience_s=patience_s
            )
        except postgres.Unfit as error:
            raise CannotTell(Code.POSTGRES_UNFIT, str(error)) from None
        except psycopg.OperationalError as error:
            raise CannotTell(Code.POSTGRES_SILENT, f"the database opens no session: {first_line(error)}") from None
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True
        self._connection.adapters.register_loader("bpchar", _Unpadded)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def count(self, name: str) -> int:
        """Return the number of rows in a table or view."""
        found = self._all(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*name.split("."))))
        return int(found[0][0])

    def ledger(self, sink: str) -> dict[tuple[str, int], tuple[int, str]]:
        """Return by output partition how far the sink has written: the next offset, and the topic's id. Raises `CannotTell` if
        an earlier Onefold filled the tables from the decision log.
        """
        rows = self._all("SELECT topic, partition, next_offset, topic_id FROM onefold.ledger WHERE sink = %s", sink)
        log = f"{sink}.decisions"
        if any(topic == log for topic, *_ in rows):
            raise CannotTell(
                Code.TABLES_OF_OTHER_TOPICS,
                f"the rows of {sink} come from the decision log {log}, and this version verifies rows of output topics only: "
                f"run `onefold rebuild {sink}`",
            )
        return {(topic, partition): (offset, topic_id) for topic, partition, offset, topic_id in rows}

    def rejected(self, sink: str) -> Iterator[Finding]:
        """Yield output records rejected by the sink."""
        asked = 'SELECT topic, partition, "offset", reason FROM onefold.rejected WHERE sink = %s ORDER BY 1, 2, 3'
        for topic, partition, offset, reason in self._all(asked, sink):
            yield Finding("rejected output", topic, output=f"{topic}/{partition}/{offset}", text=reason)

    def invariants(self, rules: tuple[Invariant, ...]) -> Iterator[Finding]:
        """Yield rows in violation of an invariant."""
        for found in broken(self._connection, rules):
            row = {name: str(value) for name, value in found.row.items()}
            yield Finding("broken invariant", found.name, row, text=found.problem)

    def column_types(self, table: Table) -> Iterator[Finding]:
        """Yield columns that are missing, have a wrong type, or are wrongly generated or not generated."""
        name = _name(table).as_string()
        found = {column: (kind, generated) for column, kind, generated in self._all(_COLUMNS, name)}
        wanted = {column.name: (KINDS[column.kind].types, column.generated) for column in table.columns}
        wanted |= {column: ((kind,), False) for column, kind in ORIGIN.items()}
        for column, (types, generated) in wanted.items():
            kind, is_generated = found.get(cut(column), ("missing", generated))
            if kind not in types or is_generated != generated:
                text = f"{column} is {'generated ' * is_generated}{kind}, not {'generated ' * generated}{types[0]}"
                yield Finding("wrong column", table.name, text=text)

    def tables(self, schema: str, names: list[str]) -> dict[str, list[str]]:
        """Return the tables in a schema, and the tables with these names, with their columns."""
        return dict(self._all(_TABLES, cut(schema), [cut(name) for name in names]))

    def rows(self, name: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        """Yield all rows of a table or view."""
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        query = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(*name.split(".")))
        try:
            with self._connection.cursor("verify") as cursor:
                cursor.itersize = _FETCH
                yield from cursor.execute(query)
        except psycopg.Error as error:
            raise unanswered(error, f"{name} cannot be read") from None

    def horizon(self) -> str:
        """Return the oldest transaction that may be invisible to this snapshot: further changes in a later snapshot are not
        older.
        """
        return str(self._all("SELECT pg_snapshot_xmin(pg_current_snapshot())::xid::text")[0][0])

    def newer(self, table: Table, horizon: str) -> list[Row]:
        """Return all rows written after a snapshot with this horizon, by any program, and maybe some earlier rows."""
        asked = sql.SQL("SELECT {} FROM {} WHERE age(xmin) <= age(%s::xid)")
        return self._all(asked.format(_columns(table), _name(table)), horizon)

    def blocks(self, table: Table) -> int:
        """Return the number of blocks in the table."""
        asked = sql.SQL("SELECT pg_relation_size({}::regclass) / current_setting('block_size')::int")
        return int(self._all(asked.format(_name(table).as_string()))[0][0])

    def in_blocks(self, table: Table, first: int, end: int) -> list[Row]:
        """Return the rows in the blocks [first, end), with their origin. For the last blocks, pass an end beyond all blocks."""
        asked = sql.SQL("SELECT {} FROM {} WHERE ctid >= %s::tid AND ctid < %s::tid")
        return self._all(asked.format(_columns(table), _name(table)), f"({first},0)", f"({end},0)")

    def by_keys(self, table: Table, keys: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows with these keys, with their origin."""
        kinds = {column.name: column.kind for column in table.columns}
        names = [sql.Identifier(f"key_{number}") for number in range(len(table.key))]
        arrays = [sql.SQL("%s::{}[]").format(sql.SQL(KINDS[kinds[name]].types[0])) for name in table.key]
        same = [
            sql.SQL("{}.{} = {}").format(sql.Identifier("found"), sql.Identifier(name), key)
            for name, key in zip(table.key, names, strict=True)
        ]
        asked = sql.SQL("SELECT {} FROM unnest({}) AS asked ({}) JOIN {} AS found ON {}").format(
            _columns(table, "found"),
            sql.SQL(", ").join(arrays),
            sql.SQL(", ").join(names),
            _name(table),
            sql.SQL(" AND ").join(same),
        )
        listed = list(keys)
        for at in range(0, len(listed), _KEYS_AT_ONCE):
            part = listed[at : at + _KEYS_AT_ONCE]
            yield from self._all(asked, *(list(column) for column in zip(*part, strict=True)))

    def doubled(self, table: Table) -> Iterator[tuple[Any, ...]]:
        """Yield keys with several rows, and the number of rows. A unique index on the key makes the query unnecessary."""
        name = _name(table)
        if not self._all(_ONE_A_KEY, name.as_string(), list(table.key)):
            columns = sql.SQL(", ").join([*map(sql.Identifier, table.key), sql.SQL("count(*)")])
            # A table without key columns has one row.
            groups = sql.SQL("GROUP BY {}").format(sql.SQL(", ").join(map(sql.Identifier, table.key)))
            query = sql.SQL("SELECT {} FROM {} {} HAVING count(*) > 1")
            yield from self._all(query.format(columns, name, groups if table.key else sql.SQL("")))

    def _all(self, query: str | sql.Composed, *values: Any) -> list[tuple[Any, ...]]:
        try:
            found = self._connection.execute(query, values)
            return found.fetchall() if found.description else []
        except psycopg.Error as error:
            raise unanswered(error) from None


def _name(table: Table) -> sql.Identifier:
    return sql.Identifier(*table.name.split("."))


def _columns(table: Table, of: str = "") -> sql.Composed:
    names = [*(column.name for column in table.columns), *ORIGIN]
    return sql.SQL(", ").join(sql.Identifier(of, name) if of else sql.Identifier(name) for name in names)


def unanswered(error: psycopg.Error, what: str = "the database does not answer as Onefold's would") -> CannotTell:
    """Return why a query has no answer."""
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        what = "the database does not answer"
    return CannotTell(Code.POSTGRES_REFUSES, f"{what}: {first_line(error)}")


def cut(name: str) -> str:
    """Return a name as truncated by PostgreSQL; a name with a schema is two names."""
    return ".".join(part.encode()[:_NAME_BYTES].decode(errors="ignore") for part in name.split("."))


def first_line(error: Exception) -> str:
    """Return the first line of a database error, without its details."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
