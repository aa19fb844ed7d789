"""What the page of one pipeline shows of the database and the list of pipelines does not: its rows, and what the judge found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from onefold.dashboard.reader import Connection


class Filled(NamedTuple):
    """A table that a pipeline writes to. rows: about so many, as Postgres has counted."""

    schema: str
    name: str
    rows: int

    @property
    def text(self) -> str:
        """Its name with its schema's."""
        return f"{self.schema}.{self.name}"


class ShownFinding(NamedTuple):
    """One finding of the judge, as texts; "" where there is nothing to say."""

    kind: str
    where: str
    key: str
    what: str
    output: str
    source: str


@dataclass(frozen=True)
class Detail:
    """Of one pipeline.

    Attributes:
        tables: those that may be read.
        kinds: what the last verify found, and how often, the worst first.
        findings: the first of them.
        compared: how many output records and rows; None: an earlier version kept the verdict.
        uncompared: how many output records could not be compared.
        begins: partitions that were not read from offset 0, each with the first offset that was read.
        not_judged: what nobody compares, each with the reason that the model gives, or "".
    """

    tables: Sequence[Filled] = ()
    kinds: Sequence[tuple[str, int]] = ()
    findings: Sequence[ShownFinding] = ()
    compared: tuple[int, int] | None = None
    uncompared: int = 0
    begins: Sequence[tuple[str, int]] = ()
    not_judged: Sequence[tuple[str, str]] = ()


async def fetch(connection: Connection, name: str, tables: Sequence[tuple[str, str]]) -> Detail:
    """The detail of a pipeline that writes to `tables`, each (schema, name). Raises psycopg.Error."""
    rows = await connection.execute(_TABLES, ([schema for schema, _ in tables], [table for _, table in tables]))
    filled = [Filled(*row) for row in await rows.fetchall()]
    kept: dict[str, Any] = {}
    covered: dict[str, Any] = {}
    (there,) = await (await connection.execute(_THERE)).fetchone() or (False,)
    if there:
        stored = await (await connection.execute(_STORED, (name,))).fetchone() or ()
        kept, covered = (found if isinstance(found, dict) else {} for found in stored or ({}, {}))
    first = [
        ShownFinding(*(str(one.get(field) or "") for field in ShownFinding._fields)) for one in kept.get("first", ())
    ]
    compared = (covered["outputs"], covered["rows"]) if covered else None
    not_judged = [(name, why) for name, why in covered.get("not_judged", ())]
    kinds = [(kind, count) for kind, count in kept.get("kinds", ())]
    begins = [
        (f"{topic}/{partition}", offset)
        for topic, offsets in sorted(covered.get("from", {}).items())
        for partition, offset in sorted(offsets.items(), key=lambda one: int(one[0]))
        if offset
    ]
    return Detail(filled, kinds, first, compared, covered.get("uncompared", 0), begins, not_judged)


# Of what the catalogue counts, because a page that counts rows each second would be the database's largest reader. What was
# never analyzed has -1 there, and what was counted is gone after a crash.
_TABLES = """
SELECT space.nspname, class.relname, greatest(counted.n_live_tup, class.reltuples, 0)::bigint
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS wanted (space, name, place)
JOIN pg_namespace AS space ON space.nspname = wanted.space
JOIN pg_class AS class ON class.relnamespace = space.oid AND class.relname = wanted.name AND class.relkind IN ('r', 'p')
LEFT JOIN pg_stat_all_tables AS counted ON counted.relid = class.oid
WHERE has_schema_privilege(space.oid, 'USAGE') AND has_table_privilege(class.oid, 'SELECT')
ORDER BY wanted.place
"""
_THERE = "SELECT coalesce(has_table_privilege(to_regclass('onefold.verdict'), 'SELECT'), false)"
# A database of an older Onefold has no such columns.
_STORED = """
SELECT to_jsonb(verdict) -> 'findings', to_jsonb(verdict) -> 'coverage' FROM onefold.verdict AS verdict WHERE domain = %s
"""
