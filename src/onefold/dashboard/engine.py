"""Onefold's own tables by pipeline: the sink's offsets, the last verdict, and refused records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from onefold.dashboard.reader import Connection
from onefold.operate.offsets import LEDGER, Landed

# A database of an older version lacks some of these tables; the page then shows none of their values.
_TABLES = ("ledger", "verdict", "rejected", "injected")


@dataclass(frozen=True)
class LastVerdict:
    """The last verdict of `onefold verify` on a pipeline.

    Attributes:
        since: records and markers written after the verified offsets.
        outputs: output records compared, from the beginning of the log; None: an older version wrote the verdict.
        left_out: number of objects (topics, tables and columns), and of output records, that were not compared.
    """

    outcome: str
    reason: str
    records: int | None
    judged_at: datetime
    since: int
    outputs: int | None = None
    left_out: tuple[int, int] = (0, 0)


@dataclass
class DomainState:
    """Progress of a pipeline.

    Attributes:
        landed: sum of the next offsets over all partitions, so that the growth counts new records.
        landed_at: time of the last committed batch; None: no batch yet.
        rejected: output records that PostgreSQL refused.
        places: rows of the ledger, one for each partition that the sink writes.
    """

    landed: int = 0
    landed_at: datetime | None = None
    rejected: int = 0
    verdict: LastVerdict | None = None
    places: list[Landed] = field(default_factory=list)

    @property
    def verified(self) -> bool:
        """Whether the verdict was "valid", and no record was written since."""
        return self.verdict is not None and self.verdict.outcome == "valid" and self.verdict.since == 0


@dataclass(frozen=True)
class Fault:
    """Injected failures of a stage: their number so far, and the requested share of batches in percent."""

    stage: str
    failures: int
    percent: Decimal


@dataclass(frozen=True)
class EngineTables:
    """All pipelines at one moment.

    Attributes:
        taken_at: time of the snapshot.
        faults: by stage; empty if none was ever requested.
    """

    taken_at: datetime
    domains: Mapping[str, DomainState] = field(default_factory=dict)
    faults: Sequence[Fault] = ()


async def fetch(connection: Connection) -> EngineTables:
    """Fetch the state of every pipeline with a ledger row, a verdict or refused records."""
    now, *present = await _row(connection, f"SELECT now(), {', '.join(map(_exists, _TABLES))}")
    has = dict(zip(_TABLES, present, strict=True))
    domains: dict[str, DomainState] = {}
    ledger = [Landed(*row) for row in await _rows(connection, LEDGER)] if has["ledger"] else []
    for row in ledger:
        state = domains.setdefault(row.sink, DomainState())
        state.landed += row.next_offset
        state.places.append(row)
        if row.next_offset:  # the ledger row exists before the first batch
            state.landed_at = max(filter(None, (state.landed_at, row.updated_at)))
    for sink, count in await _rows(connection, _REJECTED) if has["rejected"] else []:
        domains.setdefault(sink, DomainState()).rejected = count
    for name, *judged in await _rows(connection, _VERDICTS) if has["verdict"] else []:
        mine = [row for row in ledger if row.sink == name]
        domains.setdefault(name, DomainState()).verdict = _verdict(mine, *judged)
    faults = [Fault(*row) for row in await _rows(connection, _FAULTS)] if has["injected"] else []
    return EngineTables(now, dict(sorted(domains.items())), faults)


_REJECTED = "SELECT sink, count(*) FROM onefold.rejected GROUP BY sink"
# A database of an older version has no column `coverage`, hence `to_jsonb`.
_VERDICTS = """
SELECT domain, outcome, reason, counts, offsets, judged_at, to_jsonb(verdict) -> 'coverage' FROM onefold.verdict AS verdict
"""
_FAULTS = "SELECT stage, failures, percent FROM onefold.injected ORDER BY stage"


def _exists(table: str) -> str:
    return f"to_regclass('onefold.{table}') IS NOT NULL"


def _verdict(
    landed: Sequence[Landed],
    outcome: str,
    reason: str,
    counts: dict[str, int],
    offsets: dict[str, dict[str, int]],
    judged_at: datetime,
    coverage: dict[str, Any] | None,
) -> LastVerdict:
    since = sum(max(0, row.next_offset - offsets.get(row.topic, {}).get(str(row.partition), 0)) for row in landed)
    known = coverage or {}
    left_out = len(known.get("not_judged", ())), known.get("uncompared", 0)
    return LastVerdict(outcome, reason, counts.get("records"), judged_at, since, known.get("outputs"), left_out)


async def _rows(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    return await (await connection.execute(query)).fetchall()


async def _row(connection: Connection, query: str) -> tuple[Any, ...]:
    (row,) = await _rows(connection, query)
    return row
