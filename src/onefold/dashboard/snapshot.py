"""A snapshot: everything that one view of the page shows of the database, at one moment; and what it means."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from onefold.dashboard import batches, detail, engine, failures, flow, invariants, jobs, rollups
from onefold.dashboard.batches import Batch, Slot
from onefold.dashboard.detail import Detail
from onefold.dashboard.engine import DomainState, Engine
from onefold.dashboard.failures import Failure
from onefold.dashboard.flow import Flow
from onefold.dashboard.invariants import Checked
from onefold.dashboard.jobs import Jobs
from onefold.dashboard.panels import Reading, Shown
from onefold.dashboard.reader import Reader
from onefold.dashboard.rollups import Agreements, Level, Sum
from onefold.dashboard.standing import Tone
from onefold.operate import pipelines
from onefold.operate.held import Held
from onefold.operate.lag import UNKNOWN, Lag
from onefold.operate.panels import Panels, Rollup, load
from onefold.pipelines import Faulty

# What a producer last reported has had this long to reach Kafka before a difference counts as one: its sums run ahead of
# the transaction that it is filling.
REPORT_AGE_MIN = timedelta(seconds=5)
SEE_WHICH_ROWS = "Run onefold verify to see which rows."
INVARIANTS_S = 1.0  # for the invariants of all pipelines
NO_KAFKA = "no Kafka is set, and the embedded one does not run."

Lags = Mapping[str, Lag]


@dataclass(frozen=True)
class OfPipeline:
    """The view of one pipeline.

    Attributes:
        tables: the tables that it writes to, as (schema, name).
        wanted: the address, as names and values: the levels of a rollup.
        span_s: so far its charts and batches go back.
    """

    name: str
    tables: tuple[tuple[str, str], ...] = ()
    wanted: tuple[tuple[str, str], ...] = ()
    span_s: int = flow.SPAN_S


#: What is looked at: a pipeline, or None: all of them.
View = OfPipeline | None


@dataclass(frozen=True)
class Snapshot:
    """What a view shows.

    Attributes:
        agreements: of every rollup of every pipeline.
        invariants: by pipeline.
        jobs: none in a database without jobs.
        flow: of the pipeline that is viewed; None where nothing is known of it.
        detail: of a view of one pipeline; None of every other.
        panels: of a view of one pipeline.
        panels_problem: why its panels are unknown, in one sentence, or "".
        day: the last day of the pipeline that is viewed.
        refused: rows of the pipeline that PostgreSQL refused, by reason.
        refused_problem: why they are unknown, in one sentence, or "".
        newest: of the batches in the time that is viewed.
        day_problem: why it is unknown, in one sentence, or "".
    """

    engine: Engine
    agreements: Agreements = field(default_factory=dict)
    invariants: Mapping[str, Checked] = field(default_factory=dict)
    jobs: Collection[Jobs] = ()
    flow: Flow | None = None
    detail: Detail | None = None
    panels: Collection[Shown] = ()
    panels_problem: str = ""
    day: Sequence[Slot] = ()
    day_problem: str = ""
    newest: Sequence[Batch] = ()
    refused: Sequence[Failure] = ()
    refused_problem: str = ""

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


async def take(reader: Reader, views: Collection[View], reading: Reading) -> dict[View, Snapshot]:
    """The snapshots of several views, all of one moment, but for large panels. Raises psycopg.Error."""
    declared = declarations()
    compared = [((name, one.title), one) for name, (panels, _) in declared.items() for one in panels.rollups]
    async with reader.snapshot() as connection:
        state = await engine.fetch(connection)
        at = state.taken_at
        home = Snapshot(
            state,
            await rollups.agreements(connection, compared),
            await invariants.fetch(connection, reading, at, reading.ends(INVARIANTS_S)),
            await jobs.fetch(connection),
        )
        snapshots: dict[View, Snapshot] = {}
        ends = reading.ends()
        for view in views:
            snapshots[view] = home
            if view is not None:
                panels, problem = declared.get(view.name, (Panels(), ""))
                flowing, untold = await flow.fetch(
                    connection, view.name, panels.latency, reading, at, ends, view.span_s
                )
                shown = await reading.fetch(connection, view.name, panels.panel, dict(view.wanted), at, ends)
                refused, refused_problem = await failures.rejected(connection, view.name, reading, at, ends)
                newest = await batches.newest(connection, view.name, view.span_s)
                day, day_problem = await batches.day(connection, view.name, reading, at, ends)
                snapshots[view] = replace(
                    home,
                    flow=flowing,
                    detail=await detail.fetch(connection, view.name, view.tables),
                    panels=shown,
                    panels_problem=problem or untold,
                    day=day,
                    newest=newest,
                    refused=refused,
                    refused_problem=refused_problem,
                    day_problem=day_problem,
                )
    return snapshots


def declarations() -> dict[str, tuple[Panels, str]]:
    """The panels of every pipeline, each with the reason why they are none, or ""."""
    found = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            found[name] = load(pipeline), ""
        except Faulty as fault:
            found[name] = Panels(), str(fault)
    return found


def comparison(snapshot: Snapshot, name: str, shown: Shown, lag: LagNow) -> Compared | None:
    """What the sums of a rollup's node mean, in a few words; None where there are none."""
    level, rollup = shown.content, shown.panel
    if not isinstance(rollup, Rollup) or not isinstance(level, Level):
        return None
    if level.node.ours is None and level.node.expected is None:
        return None
    agreement = snapshot.agreements.get((name, rollup.title))
    if agreement and agreement.adds_up is False:
        return Compared("bad", "The levels do not add up", "The sums of one level differ from another level's sums.")
    difference = level.node.difference
    if difference is None:
        return Compared("quiet", "No producer to compare with", "No producer has reported sums of its own.")
    if difference:
        return _different(snapshot, name, shown, level, difference, lag, rollup.count.replace("_", " "))
    if snapshot.verified(name):
        return Compared("good", "Equal, and verified", "Every row was recomputed from the log of messages.")
    return Compared("good", "Equal", "The pipeline holds what the producer sent.")


def _different(
    snapshot: Snapshot, name: str, shown: Shown, level: Level, difference: Sum, lag: LagNow, things: str
) -> Compared:
    """Sums that differ are wrong only when nothing is on the way any more."""
    events = lag.of(name)
    if events is None:
        why = lag.problem or "Kafka has not been asked yet."
        return Compared("quiet", "They differ", f"How much is on the way is unknown: {why}")
    if is_conclusive(shown.taken_at, name, level.reported_at, lag):
        where = where_it_arose(snapshot, name) or SEE_WHICH_ROWS
        return Compared("bad", "They differ", f"Nothing is on the way, and the sums are not the same. {where}")
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


def is_conclusive(taken_at: datetime, domain: str, reported_at: datetime | None, lag: LagNow) -> bool:
    """Whether a difference is one: the producer reported, then Kafka was asked and had nothing left, then the sums were read; in
    this order.
    """
    if lag.of(domain) != 0 or reported_at is None or lag.asked_at is None or lag.answered_at is None:
        return False
    return reported_at < lag.asked_at - REPORT_AGE_MIN and lag.answered_at < taken_at
