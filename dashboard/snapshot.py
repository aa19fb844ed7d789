"""A snapshot: everything that one view of the page shows of the database, at one moment; and what it means."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from onefold.dashboard import agreement, detail, engine, flow, jobs, rollups, sheets, summaries
from onefold.dashboard.agreement import Agreements
from onefold.dashboard.bars import Chart, Charts
from onefold.dashboard.detail import Detail
from onefold.dashboard.engine import DomainState, Engine, Verdict
from onefold.dashboard.flow import Flow
from onefold.dashboard.jobs import Jobs
from onefold.dashboard.reader import Reader
from onefold.dashboard.rollups import Level, Rollup, Sum
from onefold.dashboard.standing import Tone
from onefold.dashboard.summaries import Summary
from onefold.operate.held import Held
from onefold.operate.lag import UNKNOWN, Lag

# What a producer last reported has had this long to reach Kafka before a difference counts as one: its sums run ahead of
# the transaction that it is filling.
REPORT_AGE_MIN = timedelta(seconds=5)
SEE_WHICH_ROWS = "Run onefold verify to see which rows."
NO_KAFKA = "no Kafka is set, and the embedded one does not run."

Lags = Mapping[str, Lag]


@dataclass(frozen=True)
class OfPipeline:
    """The view of one pipeline. tables: that it writes to, as (schema, name)."""

    name: str
    tables: tuple[tuple[str, str], ...] = ()


#: What a view of the sums asks for, as in the address: ("of", rollup) and the names of the levels.
Sums = tuple[tuple[str, str], ...]
View = Sums | OfPipeline


@dataclass(frozen=True)
class Snapshot:
    """What a view shows.

    Attributes:
        rollup, level: None in a database that has no rollup.
        agreements: of every rollup, whichever is shown.
        flow: of the rollup's domain, or of the pipeline that is viewed; None where nothing is known of it.
        jobs: none in a database without jobs.
        detail: of a view of one pipeline; None of every other.
        charts: of a view of one pipeline.
    """

    engine: Engine
    rollups: Collection[Rollup]
    rollup: Rollup | None
    level: Level | None
    flow: Flow | None
    summaries: Collection[Summary] = ()
    jobs: Collection[Jobs] = ()
    has_sheets: bool = False
    detail: Detail | None = None
    charts: Collection[Chart] = ()
    agreements: Agreements = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict | None:
        """The last verdict on the rollup's domain."""
        domain = self.engine.domains.get(self.rollup.schema) if self.rollup else None
        return domain.verdict if domain else None

    def verified(self, domain: str) -> bool:
        """Whether the last verdict on it was "valid", and nothing has landed since."""
        return self.engine.domains.get(domain, DomainState()).verified


@dataclass(frozen=True)
class LagNow:
    """The lag as Kafka gave it last.

    Attributes:
        lag: per domain.
        asked_at, answered_at: when, by the database's clock; None before the first answer.
        problem: why it is unknown, in one sentence.
        held: what open transactions hold back.
        partitions: per pipeline to whose topics some were added, in one sentence.
        paused: per pipeline that is paused since when, by whom and why.
    """

    lag: Lags
    asked_at: datetime | None
    answered_at: datetime | None
    problem: str = ""
    held: Collection[Held] = ()
    partitions: Mapping[str, str] = field(default_factory=dict)
    paused: Mapping[str, str] = field(default_factory=dict)

    def of(self, domain: str) -> int | None:
        """Events of a domain that are not landed yet."""
        return self.lag.get(domain, UNKNOWN).events


@dataclass(frozen=True)
class Compared:
    """What comes of comparing the sums with those of their producer."""

    tone: Tone
    text: str
    detail: str


async def take(reader: Reader, views: Collection[View], charts: Charts) -> dict[View, Snapshot]:
    """The snapshots of several views, all of one moment, but for large charts. Raises psycopg.Error."""
    async with reader.snapshot() as connection:
        state = await engine.fetch(connection)
        found = await rollups.find(connection)
        agreements = await agreement.fetch(connection, found)
        flows = {rollup.schema: await flow.fetch(connection, rollup.schema) for rollup in found if rollup.has_landed}
        reported = await summaries.fetch(connection)
        queues = await jobs.fetch(connection)
        has_sheets = await sheets.there(connection)
        snapshots: dict[View, Snapshot] = {}
        for view in views:
            rollup = _chosen(found, view)
            path = rollup.path(dict(view)) if rollup and not isinstance(view, OfPipeline) else ()
            level, current = None, None
            if rollup:
                agreed = agreements[rollup.name]
                level = await rollups.fetch(connection, rollup, path, None if agreed is None else agreed.adds_up)
                current = flows.get(rollup.schema)
            snapshot = Snapshot(
                state, found, rollup, level, current, reported, queues, has_sheets, agreements=agreements
            )
            if isinstance(view, OfPipeline):
                more = await detail.fetch(connection, view.name, view.tables)
                drawn = await charts.fetch(connection, view.name, state.taken_at)
                by_batch = current or await flow.of_batches(connection, view.name)
                snapshot = replace(snapshot, detail=more, charts=drawn, flow=by_batch)
            snapshots[view] = snapshot
    return snapshots


def _chosen(found: list[Rollup], view: View) -> Rollup | None:
    """The rollup that the address names, else the first; of a pipeline its own, if it has one."""
    if isinstance(view, OfPipeline):
        return next((rollup for rollup in found if rollup.schema == view.name), None)
    wanted = dict(view).get("of")
    return next((rollup for rollup in found if rollup.name == wanted), found[0] if found else None)


def comparison(snapshot: Snapshot, lag: LagNow) -> Compared | None:
    """What the sums of the node mean that is shown, in a few words; None where there are none."""
    rollup, level = snapshot.rollup, snapshot.level
    if rollup is None or level is None or (level.node.ours is None and level.node.truth is None):
        return None
    if level.adds_up is False:
        return Compared("bad", "The levels do not add up", "The sums of one level differ from another level's sums.")
    difference = level.node.difference
    if difference is None:
        return Compared("quiet", "No producer to compare with", "No producer has reported sums of its own.")
    if difference:
        return _different(snapshot, rollup, level, difference, lag)
    if snapshot.verified(rollup.schema):
        return Compared("good", "Equal, and verified", "Every row was recomputed from the log of messages.")
    return Compared("good", "Equal", "The pipeline holds what the producer sent.")


def _different(snapshot: Snapshot, rollup: Rollup, level: Level, difference: Sum, lag: LagNow) -> Compared:
    """Sums that differ are wrong only when nothing is on the way any more."""
    events = lag.of(rollup.schema)
    if events is None:
        why = lag.problem or "Kafka has not been asked yet."
        return Compared("quiet", "They differ", f"How much is on the way is unknown: {why}")
    if is_conclusive(snapshot, rollup.schema, level.reported_at, lag):
        where = where_it_arose(snapshot, rollup.schema) or SEE_WHICH_ROWS
        return Compared("bad", "They differ", f"Nothing is on the way, and the sums are not the same. {where}")
    things = rollup.count.replace("_", " ")
    text = f"{abs(difference.count):,} {things} on the way" if difference.count else "On the way"
    detail = (
        f"{events:,} events are still to be processed or written."
        if events
        else "The sink is writing the last of them."
    )
    return Compared("busy", text, detail)


def where_it_arose(snapshot: Snapshot, domain: str) -> str:
    """Of sums that differ from the producer's: what a verdict says of that, or ""."""
    if snapshot.verified(domain):
        return "Every row follows from the log, so the log holds something else than the producer reported."
    return ""


def is_conclusive(snapshot: Snapshot, domain: str, reported_at: datetime | None, lag: LagNow) -> bool:
    """Whether a difference is one: the producer reported, then Kafka was asked and had nothing left, then this snapshot was
    taken; in this order.
    """
    if lag.of(domain) != 0 or reported_at is None or lag.asked_at is None or lag.answered_at is None:
        return False
    return reported_at + REPORT_AGE_MIN < lag.asked_at and lag.answered_at < snapshot.engine.taken_at
