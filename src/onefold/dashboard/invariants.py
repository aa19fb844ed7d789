"""Asks for the rows that break an invariant, of all pipelines, within a snapshot."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psycopg

from onefold.dashboard.reader import FAILURES, Connection
from onefold.error_codes import first_line
from onefold.operate import pipelines
from onefold.verify.invariants import Broken, Invariant, invariants

SHOWN_MAX = 3  # broken rows of an invariant that are shown; `onefold verify` has them all


class Checked(NamedTuple):
    """The invariants of a pipeline. broken: rows that break one, as sentences."""

    rules: int
    broken: Sequence[str]


async def fetch(connection: Connection) -> Mapping[str, Checked]:
    """The invariants of every pipeline whose schema can be read. Raises psycopg.Error."""
    rows = await connection.execute(_READABLE, (list(pipelines.domains()),))
    named = {name: _rules(name) for (name,) in await rows.fetchall()}
    found = {}
    for name, rules in named.items():
        if rules:
            broken = [text for rule in rules for text in await _broken(connection, rule)]
            found[name] = Checked(len(rules), broken[:SHOWN_MAX])
    return found


async def _broken(connection: Connection, rule: Invariant) -> list[str]:
    try:
        async with connection.transaction():
            cursor = await connection.execute(rule.query)
            rows = await cursor.fetchmany(SHOWN_MAX)
        names = [column.name for column in cursor.description or ()]
        return [str(Broken(rule.name, dict(zip(names, row, strict=True)))) for row in rows]
    except (psycopg.OperationalError, psycopg.InterfaceError):
        raise
    except FAILURES as error:
        return [str(Broken(rule.name, {}, f"the query does not work: {first_line(error)}"))]


_rules = functools.cache(invariants)
_READABLE = (
    "SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s) AND has_schema_privilege(oid, 'USAGE') ORDER BY nspname"
)
