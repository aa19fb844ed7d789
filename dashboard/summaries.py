"""Summaries: what a pipeline wants to be seen first, and whether the rules hold that it has for every moment.

A pipeline has a summary when its schema has a view `summary`, of one row: each column is shown under its name. Beside it stands
what its invariants say, which are asked in the same snapshot, also where there is no such view. The page knows neither by name.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from onefold.dashboard.reader import Connection
from onefold.pipelines import Faulty, find
from onefold.proof.invariants import Broken, Invariant, invariants

TOLD_MAX = 3  # broken rows that are shown; `onefold verify` has them all

# Schemas with such a view, and those of pipelines with rules; and whether there is the view.
_FIND = """
SELECT space.nspname, class.oid IS NOT NULL
FROM pg_namespace AS space
LEFT JOIN pg_class AS class
  ON class.relnamespace = space.oid AND class.relname = 'summary' AND class.relkind IN ('v', 'm')
  AND has_table_privilege(class.oid, 'SELECT')
WHERE has_schema_privilege(space.oid, 'USAGE') AND (class.oid IS NOT NULL OR space.nspname = ANY(%s))
ORDER BY space.nspname
"""


@dataclass(frozen=True)
class Figure:
    """One of its columns. value: a number or a text; None is nothing."""

    name: str
    value: Any

    @property
    def kind(self) -> str:
        """How it is written: "exact", "whole" or "text"."""
        if isinstance(self.value, Decimal):
            return "exact"
        return "whole" if isinstance(self.value, int) and not isinstance(self.value, bool) else "text"


@dataclass(frozen=True)
class Summary:
    """figures: none where only the rules are asked. rules: how many there are. broken: rows that break one, in words."""

    domain: str
    figures: Sequence[Figure]
    rules: int
    broken: Sequence[str]

    @property
    def shown(self) -> bool:
        """Whether there is something to see: of rules that hold, and nothing beside, there is not."""
        return bool(self.figures or self.broken)


async def fetch(connection: Connection) -> list[Summary]:
    """The summaries of a database that this connection may read, and what the rules of pipelines say. Raises psycopg.Error."""
    found = await (await connection.execute(_FIND, (_with_rules(),))).fetchall()
    return [await _summary(connection, schema, has_view=has_view) for schema, has_view in found]


async def _summary(connection: Connection, schema: str, *, has_view: bool) -> Summary:
    figures = await _figures(connection, schema) if has_view else []
    rules = _rules(schema)
    broken = [text for rule in rules for text in await _broken(connection, rule)]
    return Summary(schema, figures, len(rules), broken[:TOLD_MAX])


async def _figures(connection: Connection, schema: str) -> list[Figure]:
    cursor = await connection.execute(sql.SQL("SELECT * FROM {} LIMIT 1").format(sql.Identifier(schema, "summary")))
    row = await cursor.fetchone() or ()
    names = [column.name for column in cursor.description or ()]
    return [Figure(*each) for each in zip(names, row, strict=False)]


async def _broken(connection: Connection, rule: Invariant) -> list[str]:
    try:
        async with connection.transaction():
            cursor = await connection.execute(rule.query)
            rows = await cursor.fetchmany(TOLD_MAX)
    except psycopg.ProgrammingError as error:
        return [str(Broken(rule.name, {}, f"the query does not work: {str(error).splitlines()[0]}"))]
    names = [column.name for column in cursor.description or ()]
    return [str(Broken(rule.name, dict(zip(names, row, strict=True)))) for row in rows]


@functools.cache
def _with_rules() -> list[str]:
    return [name for name in find().pipelines if _rules(name)]


@functools.cache
def _rules(domain: str) -> tuple[Invariant, ...]:
    try:
        return invariants(domain)
    except Faulty:
        return ()  # a schema of somebody else's, with a view of that name
