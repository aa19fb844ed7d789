"""What the engine itself knows of every domain: how far it has landed, the judge's last verdict, what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from onefold.dashboard.reader import Connection
from onefold.operate.offsets import LEDGER, Landed

# Older databases lack the newer of them; then there is nothing to show.
_TABLES = ("ledger", "verdict", "rejected", "injected")


@dataclass(frozen=True)
class LastVerdict:
    """The last verdict of `onefold verify` on a domain.

    Attributes:
        since: records and markers that have landed after what it judged.
        outputs: output records that it compared, from the beginning of the log; None: an older release wrote the verdict.
        left_out: how many topics, tables and columns, and how many output records, nobody compared.
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
    """How far a domain has come.

    Attributes:
        landed: sum of the next offsets over all partitions, so that its growth is what landed meanwhile.
        landed_at: when a batch was last committed; None: none was.
        rejected: output records that could not be landed.
        places: the ledger's rows, one for each partition that is landed.
    """

    landed: int = 0
    landed_at: datetime | None = None
    rejected: int = 0
    verdict: LastVerdict | None = None
    places: list[Landed] = field(default_factory=list)

    @property
    def verified(self) -> bool:
        """Whether the verdict was "valid", and nothing has landed since."""
        return self.verdict is not None and self.verdict.outcome == "valid" and self.verdict.since == 0


@dataclass(frozen=True)
class Fault:
    """Failures on purpose: how many there were in a stage, and in what share of the batches they are asked for."""

    stage: str
    failures: int
    percent: Decimal


@dataclass(frozen=True)
class EngineTables:
    """All domains at one moment.

    Attributes:
        taken_at: the moment of the snapshot.
        faults: by stage; none where nobody ever asked for any.
    """

    taken_at: datetime
    domains: Mapping[str, DomainState] = field(default_factory=dict)
    faults: Sequence[Fault] = ()


async def fetch(connection: Connection) -> EngineTables:
    """The state of every domain that has landed or been judged."""
    now, *present = await _row(connection, f"SELECT now(), {', '.join(map(_exists, _TABLES))}")
    has = dict(zip(_TABLES, present, strict=True))
    domains: dict[str, DomainState] = {}
    ledger = [Landed(*row) for row in await _rows(connection, LEDGER)] if has["ledger"] else []
    for row in ledger:
        state = domains.setdefault(row.sink, DomainState())
        state.landed += row.next_offset
        state.places.append(row)
        if row.next_offset:  # a place is taken before anything has come
            state.landed_at = max(filter(None, (state.landed_at, row.updated_at)))
    for sink, count in await _rows(connection, _REJECTED) if has["rejected"] else []:
        domains.setdefault(sink, DomainState()).rejected = count
    for name, *judged in await _rows(connection, _VERDICTS) if has["verdict"] else []:
        mine = [row for row in ledger if row.sink == name]
        domains.setdefault(name, DomainState()).verdict = _verdict(mine, *judged)
    faults = [Fault(*row) for row in await _rows(connection, _FAULTS)] if has["injected"] else []
    return EngineTables(now, dict(sorted(domains.items())), faults)


_REJECTED = "SELECT sink, count(*) FROM onefold.rejected GROUP BY sink"
# A database of an older release has no column `coverage`.
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
