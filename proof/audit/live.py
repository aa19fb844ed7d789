"""One snapshot of the database, of which only parts are read: rows that are new, rows by their keys, or those of some blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
from psycopg import sql

from onefold.proof.expect import Table
from onefold.proof.kinds import KINDS
from onefold.proof.tables import ORIGIN, Snapshot, unanswered

# Keys asked for at once: what goes into one message and is planned as a join over the index.
_KEYS_AT_ONCE = 5_000

Row = tuple[Any, ...]


class Live(Snapshot):
    """See above."""

    def horizon(self) -> str:
        """The oldest transaction that this snapshot may not see: what a later one sees besides is no older."""
        return str(next(self._asked(sql.SQL("SELECT pg_snapshot_xmin(pg_current_snapshot())::xid::text"), []))[0])

    def newer(self, table: Table, horizon: str) -> Iterator[Row]:
        """The rows that were written after a snapshot with this horizon, by whomever, and maybe some from before."""
        asked = sql.SQL("SELECT {} FROM {} WHERE age(xmin) <= age(%s::xid)")
        return self._asked(asked.format(_columns(table), _name(table)), [horizon])

    def blocks(self, table: Table) -> int:
        """How many blocks the table has."""
        asked = sql.SQL("SELECT pg_relation_size({}::regclass) / current_setting('block_size')::int")
        return int(next(self._asked(asked.format(_name(table).as_string()), []))[0])

    def in_blocks(self, table: Table, first: int, end: int) -> Iterator[Row]:
        """The rows that lie in the blocks [first, end), with their origin. Of the last ones give an end beyond all."""
        asked = sql.SQL("SELECT {} FROM {} WHERE ctid >= %s::tid AND ctid < %s::tid")
        return self._asked(asked.format(_columns(table), _name(table)), [f"({first},0)", f"({end},0)"])

    def by_keys(self, table: Table, keys: Iterable[Row]) -> Iterator[Row]:
        """The rows of these keys, with their origin."""
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
            yield from self._asked(asked, [list(column) for column in zip(*part, strict=True)])

    def _asked(self, query: sql.SQL | sql.Composed, values: list[Any]) -> Iterator[Row]:
        try:
            yield from self._connection.execute(query, values).fetchall()
        except psycopg.Error as error:
            raise unanswered(error) from None


def _name(table: Table) -> sql.Identifier:
    return sql.Identifier(*table.name.split("."))


def _columns(table: Table, of: str = "") -> sql.Composed:
    names = [*(column.name for column in table.columns), *ORIGIN]
    return sql.SQL(", ").join(sql.Identifier(of, name) if of else sql.Identifier(name) for name in names)
