"""Query the rows that break an invariant, of all pipelines, within a snapshot. Slow queries run less often."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from onefold.dashboard.panels import NOT_YET, PanelReader
from onefold.dashboard.reader import TOO_LARGE, Bounded, Connection
from onefold.operate import pipelines
from onefold.verify.invariants import Broken, Invariant, invariants

SHOWN_MAX = 3  # broken rows shown per pipeline; `onefold verify` lists all


class InvariantCheck(NamedTuple):
    """Invariants of a pipeline.

    Attributes:
        broken: broken rows, as sentences.
        unchecked: invariants whose query gave no answer, each with the reason.
    """

    rules: int
    broken: Sequence[str]
    unchecked: Sequence[str] = ()


async def fetch(
    connection: Connection, reading: PanelReader, taken_at: datetime, ends: float
) -> Mapping[str, InvariantCheck]:
    """Check the invariants of every pipeline whose schema can be read. No query begins after `ends`. Raises psycopg.Error."""
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
            elif kept.trouble:  # a query that fails shows no invariant to hold
                broken.append(str(Broken(rule.name, {}, kept.trouble[:1].lower() + kept.trouble[1:].rstrip("."))))
            else:
                broken += kept.content
        if rules := len(_rules(name)):
            found[name] = InvariantCheck(rules, broken[:SHOWN_MAX], unchecked)
    return found


async def _broken(connection: Bounded, rule: Invariant) -> list[str]:
    cursor = await connection.execute(rule.query)
    names = [column.name for column in cursor.description or ()]
    return [str(Broken(rule.name, dict(zip(names, row, strict=True)))) for row in await cursor.fetchmany(SHOWN_MAX)]


_rules = functools.cache(invariants)
_READABLE = (
    "SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s) AND has_schema_privilege(oid, 'USAGE') ORDER BY nspname"
)
