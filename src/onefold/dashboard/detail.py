"""Details for the page of one pipeline: tables, and mismatches of the last verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from onefold.dashboard.reader import Connection


class Filled(NamedTuple):
    """A table of a pipeline. `rows`: PostgreSQL's estimate."""

    schema: str
    name: str
    rows: int

    @property
    def text(self) -> str:
        """Qualified name."""
        return f"{self.schema}.{self.name}"


class ShownFinding(NamedTuple):
    """One mismatch of the verifier, as texts; "" for an empty field."""

    kind: str
    where: str
    key: str
    what: str
    output: str
    source: str


@dataclass(frozen=True)
class Detail:
    """Details of one pipeline.

    Attributes:
        tables: tables that the page may read.
        kinds: kinds of mismatch in the last verification with their counts, the worst first.
        findings: the first mismatches.
        compared: number of compared output records and rows; None: an earlier version stored the verdict.
        uncompared: number of output records that could not be compared.
        begins: partitions that were not read from offset 0, each with the first offset read.
        not_judged: objects that the model leaves out, each with the model's reason or "".
    """

    tables: Sequence[Filled] = ()
    kinds: Sequence[tuple[str, int]] = ()
    findings: Sequence[ShownFinding] = ()
    compared: tuple[int, int] | None = None
    uncompared: int = 0
    begins: Sequence[tuple[str, int]] = ()
    not_judged: Sequence[tuple[str, str]] = ()


async def fetch(connection: Connection, name: str, tables: Sequence[tuple[str, str]]) -> Detail:
    """Fetch the details of a pipeline that writes to `tables`, each (schema, name). Raises psycopg.Error."""
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


# Estimates, because counting rows each second would make the page the database's largest reader. A table that was never
# analyzed has `reltuples` -1, and a crash resets `n_live_tup`.
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
# A database of an older version lacks these columns, hence `to_jsonb`.
_STORED = """
SELECT to_jsonb(verdict) -> 'findings', to_jsonb(verdict) -> 'coverage' FROM onefold.verdict AS verdict WHERE domain = %s
"""
