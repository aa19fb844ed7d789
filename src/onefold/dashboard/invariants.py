"""Asks for the rows that break an invariant, of all pipelines, within a snapshot. One that takes long is asked less often."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from onefold.dashboard.panels import NOT_YET, Reading
from onefold.dashboard.reader import TOO_LARGE, Bounded, Connection
from onefold.operate import pipelines
from onefold.verify.invariants import Broken, Invariant, invariants

SHOWN_MAX = 3  # broken rows of an invariant that are shown; `onefold verify` has them all


class Checked(NamedTuple):
    """The invariants of a pipeline.

    Attributes:
        broken: rows that break one, as sentences.
        unchecked: those whose query has not answered, each with the reason.
    """

    rules: int
    broken: Sequence[str]
    unchecked: Sequence[str] = ()


async def fetch(connection: Connection, reading: Reading, taken_at: datetime, ends: float) -> Mapping[str, Checked]:
    """The invariants of every pipeline whose schema can be read; no query begins after `ends`. Raises psycopg.Error."""
    rows = await connection.execute(_READABLE, (list(pipelines.domains()),))
    found = {}
    for (name,) in await rows.fetchall():
        broken: list[str] = []
        unchecked: list[str] = []
        for rule in _rules(name):
            read = functools.partial(_broken, rule=rule)
            kept = await reading.read(connection, (name, "invariant", rule.name), rule, read, taken_at, ends)
            if kept.trouble in (TOO_LARGE, NOT_YET):
                unchecked.append(f"{rule.name}: {kept.trouble}")
            elif kept.trouble:  # as nothing holds then
                broken.append(str(Broken(rule.name, {}, kept.trouble[:1].lower() + kept.trouble[1:].rstrip("."))))
            else:
                broken += kept.content
        if rules := len(_rules(name)):
            found[name] = Checked(rules, broken[:SHOWN_MAX], unchecked)
    return found


async def _broken(connection: Bounded, rule: Invariant) -> list[str]:
    cursor = await connection.execute(rule.query)
    names = [column.name for column in cursor.description or ()]
    return [str(Broken(rule.name, dict(zip(names, row, strict=True)))) for row in await cursor.fetchmany(SHOWN_MAX)]


_rules = functools.cache(invariants)
_READABLE = (
    "SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s) AND has_schema_privilege(oid, 'USAGE') ORDER BY nspname"
)
