"""The rows in Postgres against the rows that the input gives: every one, every column, both ways, in one snapshot."""

from collections.abc import Iterator
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.types.string import TextLoader

from onefold import postgres
from onefold.error_codes import Code
from onefold.proof.expect import Expected, Table, View, Workload
from onefold.proof.invariants import Invariant, broken
from onefold.proof.kinds import KINDS, taking
from onefold.proof.models import Model
from onefold.proof.summed import Gathered
from onefold.proof.verdict import CannotTell, Check, Finding

#: How long others may hold up a question, in seconds. A verdict is asked for with a time limit, and can be asked for again.
PATIENCE_S = 5.0
# Rows fetched at once: some megabytes.
_FETCH = 10_000


#: The columns by which a row names the output record that it is from, and their types.
ORIGIN = {"topic": "text", "partition": "integer", "offset": "bigint"}


# Whether a unique index makes two rows with the same key, NULLs included, impossible.
_ONE_A_KEY = """
SELECT 1 FROM pg_index AS i
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
  AND NOT EXISTS (
      SELECT 1 FROM unnest(indkey::int2[]) WITH ORDINALITY AS k (number, place)
      JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
      WHERE place <= indnkeyatts AND (attname <> ALL (%s) OR NOT (attnotnull OR indnullsnotdistinct))
  )
"""

# The columns of a table, their types and whether PostgreSQL computes them; a domain as the type that it is made of. From the
# catalog: information_schema shows nothing of a table to a role that may not read it. Types without their modifiers.
_COLUMNS = """
SELECT attname, format_type(CASE typtype WHEN 'd' THEN typbasetype ELSE t.oid END, NULL), attgenerated <> ''
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
# PostgreSQL cuts longer names, and never within a character.
_NAME_BYTES = 63

# The tables of a schema, and those with these names, with their columns; partitions are parts of a table.
_TABLES = """
SELECT nspname || '.' || relname, array_agg(attname::text ORDER BY attnum)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace JOIN pg_attribute ON attrelid = c.oid
WHERE relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND NOT attisdropped
  AND (nspname = %s OR nspname || '.' || relname = ANY (%s))
GROUP BY 1 ORDER BY 1
"""

# A policy that hides rows from this role ends a question with an error: the rows that are left are not the table.
_SETTINGS = {**postgres.READ_ONLY, "row_security": "off"}


class _Unpadded(TextLoader):
    """The value of a `character(n)`: the spaces at its end mean nothing."""

    def load(self, data: Any) -> str:
        """The text without them."""
        return str(super().load(data)).rstrip(" ")


class Snapshot:
    """One moment of the database. All questions are answered as of the same commit.

    Args:
        patience_s: how long others may hold up a question, as by a lock.
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
        """How many rows a table or view has."""
        found = self._all(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*name.split("."))))
        return int(found[0][0])

    def ledger(self, sink: str) -> dict[tuple[str, int], tuple[int, str]]:
        """How far the sink has landed each output partition: next offset and the topic's id. Raises `CannotTell` where an earlier
        Onefold filled the tables from the decision log.
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
        """Output records that the sink set aside."""
        asked = 'SELECT topic, partition, "offset", reason FROM onefold.rejected WHERE sink = %s ORDER BY 1, 2, 3'
        for topic, partition, offset, reason in self._all(asked, sink):
            yield Finding("rejected output", topic, output=f"{topic}/{partition}/{offset}", text=reason)

    def invariants(self, rules: tuple[Invariant, ...]) -> Iterator[Finding]:
        """Rows that break what must hold at every moment."""
        for found in broken(self._connection, rules):
            row = {name: str(value) for name, value in found.row.items()}
            yield Finding("broken invariant", found.name, row, text=found.problem)

    def column_types(self, table: Table) -> Iterator[Finding]:
        """Columns that are missing, of another type, or not computed by Postgres where they should be."""
        name = sql.Identifier(*table.name.split(".")).as_string()
        found = {column: (kind, generated) for column, kind, generated in self._all(_COLUMNS, name)}
        wanted = {column.name: (KINDS[column.kind].types, column.generated) for column in table.columns}
        wanted |= {column: ((kind,), False) for column, kind in ORIGIN.items()}
        for column, (types, generated) in wanted.items():
            kind, is_generated = found.get(cut(column), ("missing", generated))
            if kind not in types or is_generated != generated:
                text = f"{column} is {'generated ' * is_generated}{kind}, not {'generated ' * generated}{types[0]}"
                yield Finding("wrong column", table.name, text=text)

    def tables(self, schema: str, names: list[str]) -> dict[str, list[str]]:
        """The tables of a schema, and those with these names, with their columns."""
        return dict(self._all(_TABLES, cut(schema), [cut(name) for name in names]))

    def rows(self, name: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        """All rows of a table or view."""
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        query = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(*name.split(".")))
        try:
            with self._connection.cursor("verify") as cursor:
                cursor.itersize = _FETCH
                yield from cursor.execute(query)
        except psycopg.Error as error:
            raise unanswered(error, f"{name} cannot be read") from None

    def doubled(self, table: Table) -> Iterator[tuple[Any, ...]]:
        """Keys that several rows of a table have, and how many. An index that allows none spares to look."""
        name = sql.Identifier(*table.name.split("."))
        if not self._all(_ONE_A_KEY, name.as_string(), list(table.key)):
            columns = sql.SQL(", ").join([*map(sql.Identifier, table.key), sql.SQL("count(*)")])
            # Of a table without a key there is one row.
            groups = sql.SQL("GROUP BY {}").format(sql.SQL(", ").join(map(sql.Identifier, table.key)))
            query = sql.SQL("SELECT {} FROM {} {} HAVING count(*) > 1")
            yield from self._all(query.format(columns, name, groups if table.key else sql.SQL("")))

    def _all(self, query: str | sql.Composed, *values: Any) -> list[tuple[Any, ...]]:
        try:
            found = self._connection.execute(query, values)
            return found.fetchall() if found.description else []
        except psycopg.Error as error:
            raise unanswered(error) from None


class Comparison:
    """The tables of a workload in one snapshot. `last[table][key]` is the last output record of each row."""

    def __init__(self, workload: Workload, snapshot: Snapshot, expected: Expected, last: dict[str, Any]) -> None:
        self._workload = workload
        self._snapshot = snapshot
        self._model: Model = expected.model
        self._last = last
        self.checks: list[Check] = []

    def findings(self) -> Iterator[Finding]:
        """Everything wrong in the tables and views; `checks` is complete when this ends."""
        for table in self._workload.tables:
            wrong = list(self._snapshot.column_types(table))
            yield from wrong
            if not any("missing" in finding.text for finding in wrong):
                yield from self._table(table, is_sound=not wrong)
        for view in self._workload.views:
            yield from self._view(view)

    def _table(self, table: Table, *, is_sound: bool) -> Iterator[Finding]:
        names = tuple(column.name for column in table.columns)
        wanted, last, width = self._model.rows[table.name], self._last.get(table.name, {}), len(names)
        key_of = taking([names.index(name) for name in table.key])
        topic = table.topic
        found = matched = 0
        for row in self._snapshot.rows(table.name, (*names, *ORIGIN)):
            found += 1
            values, origin = row[:width], row[width:]
            key = key_of(values)
            if key not in wanted:
                yield extra(table, key, origin)
                continue
            matched += 1
            correct, source = wanted[key]
            written = last.get(key)
            if values != correct and (wrong := differing(table, names, correct, values)):
                yield different(table, key, wrong, origin, source)
            elif table.summed:
                if origin[0] != topic:
                    text = f"its rows are sums over {topic}"
                    yield Finding("wrong origin", table.name, row_of(table, key), {}, joined(origin), text=text)
            elif written is None or origin != (topic, written.partition, written.offset):
                text = f"the last output record of this row is {_spot(topic, written)}"
                yield Finding("wrong origin", table.name, row_of(table, key), {}, joined(origin), str(source), text)
            elif written.source != source:
                text = f"the output record names {written.source}"
                yield Finding("wrong origin", table.name, row_of(table, key), {}, joined(origin), str(source), text)
        self.checks.append(Check(table.name, len(wanted), found))
        # What has another type may be nothing that Postgres can tell apart.
        for *doubled, rows in self._snapshot.doubled(table) if is_sound else ():
            key = tuple(doubled)
            matched -= rows - 1 if key in wanted else 0
            yield Finding("extra row", table.name, row_of(table, key), text=f"there are {rows} rows with this key")
        if matched < len(wanted):
            yield from self._missing(table)

    def _missing(self, table: Table) -> Iterator[Finding]:
        there = set(self._snapshot.rows(table.name, table.key))
        adds_up = table.summed and not isinstance(table.sums, Gathered)
        amounts = taking([at for at, column in enumerate(table.columns) if column.name not in table.key])
        for key, (values, source) in self._model.rows[table.name].items():
            # What came and went in one transaction was never written; a sum of nothing means as much as no row.
            nothing = adds_up and not any(amounts(values))
            if key not in there and not nothing:
                written = self._last.get(table.name, {}).get(key)
                text = (
                    "its output record is in Kafka, and not in PostgreSQL"
                    if written
                    else "no output record was ever written for it"
                )
                text = "a level of the sums" if table.summed else text
                spot = _spot(table.topic, written) if written else None
                yield Finding("missing row", table.name, row_of(table, key), {}, spot, str(source), text)

    def _view(self, view: View) -> Iterator[Finding]:
        table = next(table for table in self._workload.tables if table.name == view.table)
        names = [column.name for column in table.columns]
        shown, key_of = taking([*map(names.index, view.columns)]), taking([*map(view.columns.index, table.key)])
        wanted = {key: (shown(values), source) for key, (values, source) in self._model.rows[table.name].items()}
        expected = len(wanted)
        found = 0
        for row in self._snapshot.rows(view.name, view.columns):
            key = key_of(row)
            correct, source = wanted.pop(key, (None, None))
            found += 1
            if correct is None:
                yield Finding("extra row", view.name, row_of(table, key))
            elif row != correct and (wrong := differing(table, view.columns, correct, row)):
                yield different(table, key, wrong, None, source, view.name)
        self.checks.append(Check(view.name, expected, found))
        for key, (_, source) in wanted.items():
            yield Finding("missing row", view.name, row_of(table, key), source=str(source))


def differing(
    table: Table, names: tuple[str, ...], correct: tuple[Any, ...], values: tuple[Any, ...]
) -> dict[str, Any]:
    """By column what should be there and what is, where that is not the same."""
    kinds = {column.name: KINDS[column.kind].comparable for column in table.columns}
    found = {}
    for name, one, other in zip(names, correct, values, strict=True):
        as_ = kinds[name]
        if one != other and (as_ is None or as_(one) != as_(other)):
            found[name] = one, other
    return found


def extra(table: Table, key: tuple[Any, ...], origin: tuple[Any, ...]) -> Finding:
    """A row that should not be there."""
    return Finding("extra row", table.name, row_of(table, key), {}, joined(origin))


def different(
    table: Table,
    key: tuple[Any, ...],
    columns: dict[str, Any],
    origin: tuple[Any, ...] | None,
    source: Any,
    where: str | None = None,
) -> Finding:
    """A row with wrong values: per column what should be there, and what is."""
    weight = sum(abs((a or 0) - (b or 0)) for a, b in columns.values() if {type(a), type(b)} <= {int, type(None)})
    output = joined(origin) if origin else None
    return Finding(
        "different row", where or table.name, row_of(table, key), columns, output, str(source), weight=weight
    )


def row_of(table: Table, key: tuple[Any, ...]) -> dict[str, Any]:
    """A key, by column."""
    return dict(zip(table.key, key, strict=True))


def _spot(topic: str, written: Any) -> str:
    return f"{topic}/{written.partition}/{written.offset}" if written else "missing"


def joined(origin: tuple[Any, ...]) -> str:
    """A place, as findings name it."""
    return "/".join(map(str, origin))


def unanswered(error: psycopg.Error, what: str = "the database does not answer as Onefold's would") -> CannotTell:
    """Why a question to the database has no answer."""
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        what = "the database does not answer"
    return CannotTell(Code.POSTGRES_REFUSES, f"{what}: {first_line(error)}")


def cut(name: str) -> str:
    """A name as PostgreSQL has it; one with a schema is two names."""
    return ".".join(part.encode()[:_NAME_BYTES].decode(errors="ignore") for part in name.split("."))


def first_line(error: Exception) -> str:
    """What a database's error says, without its details."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
