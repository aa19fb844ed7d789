"""Snapshot of the database at one moment for the views of the page, and the comparison of sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from onefold.dashboard import batches, detail, engine, failures, flow, invariants, jobs, rollups
from onefold.dashboard.batches import Batch, Slot
from onefold.dashboard.detail import Detail
from onefold.dashboard.engine import DomainState, EngineTables
from onefold.dashboard.failures import Failure
from onefold.dashboard.flow import Flow
from onefold.dashboard.invariants import InvariantCheck
from onefold.dashboard.jobs import ShownQueue
from onefold.dashboard.panels import PanelReader, ShownPanel
from onefold.dashboard.pipeline_status import Tone
from onefold.dashboard.reader import DatabaseReader
from onefold.dashboard.rollups import Agreements, ExactSum, Level
from onefold.operate import pipelines
from onefold.operate.hanging_transactions import Held
from onefold.operate.lag import UNKNOWN, Lag
from onefold.operate.panels import Panels, Rollup, load
from onefold.pipelines import InvalidDeclaration

# Minimum age of a producer's report before a difference counts: the reported sums are ahead of the open transaction.
REPORT_AGE_MIN = timedelta(seconds=5)
SEE_WHICH_ROWS = "Run onefold verify to see which rows."
INVARIANTS_S = 1.0  # for the invariants of all pipelines
NO_KAFKA = "no Kafka is set, and the embedded one does not run."

Lags = Mapping[str, Lag]


@dataclass(frozen=True)
class OfPipeline:
    """View of one pipeline.

    Attributes:
        tables: tables that the pipeline writes, as (schema, name).
        wanted: items of the address, as names and values: the levels of a rollup.
        span_s: range of the charts and batches in seconds.
    """

    name: str
    tables: tuple[tuple[str, str], ...] = ()
    wanted: tuple[tuple[str, str], ...] = ()
    span_s: int = flow.SPAN_S


#: A view: one pipeline, or None for all pipelines.
View = OfPipeline | None


@dataclass(frozen=True)
class ViewSnapshot:
    """Content of a view.

    Attributes:
        agreements: of every rollup of every pipeline.
        invariants: by pipeline.
        jobs: empty in a database without jobs.
        flow: of the viewed pipeline; None: unknown.
        detail: of the viewed pipeline; None in the view of all pipelines.
        panels: of the viewed pipeline.
        panels_problem: reason why the panels are unknown, in one sentence, or "".
        day: last day of the viewed pipeline.
        refused: rows of the viewed pipeline that PostgreSQL refused, by reason.
        refused_problem: reason why `refused` is unknown, in one sentence, or "".
        newest: newest batches in the viewed range.
        day_problem: reason why `day` is unknown, in one sentence, or "".
    """

    engine: EngineTables
    agreements: Agreements = field(default_factory=dict)
    invariants: Mapping[str, InvariantCheck] = field(default_factory=dict)
    jobs: Collection[ShownQueue] = ()
    flow: Flow | None = None
    detail: Detail | None = None
    panels: Collection[ShownPanel] = ()
    panels_problem: str = ""
    day: Sequence[Slot] = ()
    day_problem: str = ""
    newest: Sequence[Batch] = ()
    refused: Sequence[Failure] = ()
    refused_problem: str = ""

    def verified(self, domain: str) -> bool:
        """Whether the last verdict was "valid", and no record was written since."""
        return self.engine.domains.get(domain, DomainState()).verified


@dataclass(frozen=True)
class LagNow:
    """Last answers of Kafka about the lag.

    Attributes:
        lag: per pipeline.
        asked_at, answered_at: database time of request and answer; None before the first answer.
        problem: reason why the lag is unknown, in one sentence, or "".
        held: records hidden by open transactions.
        partitions: a sentence for each pipeline whose topics have added or uneven partitions.
        paused: for each paused pipeline since when, by whom and why.
    """

    lag: Lags
    asked_at: datetime | None
    answered_at: datetime | None
    problem: str = ""
    held: Collection[Held] = ()
    partitions: Mapping[str, str] = field(default_factory=dict)
    paused: Mapping[str, str] = field(default_factory=dict)

    def of(self, domain: str) -> int | None:
        """Number of a pipeline's events that are not in the tables; None: unknown."""
        return self.lag.get(domain, UNKNOWN).events


@dataclass(frozen=True)
class SumComparison:
    """Result of comparing sums with the producer's."""

    tone: Tone
    text: str
    detail: str


async def take(reader: DatabaseReader, views: Collection[View], reading: PanelReader) -> dict[View, ViewSnapshot]:
    """Take snapshots of several views at one moment. Large panels may come from an earlier one. Raises psycopg.Error."""
    declared = declarations()
    compared = [((name, one.title), one) for name, (panels, _) in declared.items() for one in panels.rollups]
    async with reader.snapshot() as connection:
        state = await engine.fetch(connection)
        at = state.taken_at
        home = ViewSnapshot(
            state,
            await rollups.agreements(connection, compared),
            await invariants.fetch(connection, reading, at, reading.ends(INVARIANTS_S)),
            await jobs.fetch(connection),
        )
        snapshots: dict[View, ViewSnapshot] = {}
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
    """Panels of every pipeline, each with the reason why the declaration is invalid or ""."""
    found = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            found[name] = load(pipeline), ""
        except InvalidDeclaration as fault:
            found[name] = Panels(), str(fault)
    return found


def comparison(snapshot: ViewSnapshot, name: str, shown: ShownPanel, lag: LagNow) -> SumComparison | None:
    """Result of comparing the sums of a rollup's node; None without sums."""
    level, rollup = shown.content, shown.panel
    if not isinstance(rollup, Rollup) or not isinstance(level, Level):
        return None
    if level.node.ours is None and level.node.expected is None:
        return None
    agreement = snapshot.agreements.get((name, rollup.title))
    if agreement and agreement.adds_up is False:
        return SumComparison(
            "bad", "The levels do not add up", "The sums of one level differ from another level's sums."
        )
    difference = level.node.difference
    if difference is None:
        return SumComparison("quiet", "No producer to compare with", "No producer has reported sums of its own.")
    if difference:
        return _different(snapshot, name, shown, level, difference, lag, rollup.count.replace("_", " "))
    if snapshot.verified(name):
        return SumComparison("good", "Equal, and verified", "Every row was recomputed from the log of messages.")
    return SumComparison("good", "Equal", "The pipeline holds what the producer sent.")


def _different(
    snapshot: ViewSnapshot, name: str, shown: ShownPanel, level: Level, difference: ExactSum, lag: LagNow, things: str
) -> SumComparison:
    """Result for sums that differ: wrong only if no event is on the way."""
    events = lag.of(name)
    if events is None:
        why = lag.problem or "Kafka has not been asked yet."
        return SumComparison("quiet", "They differ", f"How much is on the way is unknown: {why}")
    if is_conclusive(shown.taken_at, name, level.reported_at, lag):
        where = where_it_arose(snapshot, name) or SEE_WHICH_ROWS
        return SumComparison("bad", "They differ", f"Nothing is on the way, and the sums are not the same. {where}")
    text = f"{abs(difference.count):,} {things} on the way" if difference.count else "On the way"
    detail = (
        f"{events:,} events are still to be processed or written."
        if events
        else "The sink is writing the last of them."
    )
    return SumComparison("busy", text, detail)


def where_it_arose(snapshot: ViewSnapshot, domain: str) -> str:
    """Statement of the verdict about the cause of a difference, or ""."""
    if snapshot.verified(domain):
        return "Every row follows from the log, so the log holds something else than the producer reported."
    return ""


def is_conclusive(taken_at: datetime, domain: str, reported_at: datetime | None, lag: LagNow) -> bool:
    """Whether a difference is real. The order must be: report of the producer, Kafka's answer without lag, then the reading of
    the sums."""
    if lag.of(domain) != 0 or reported_at is None or lag.asked_at is None or lag.answered_at is None:
        return False
    return reported_at < lag.asked_at - REPORT_AGE_MIN and lag.answered_at < taken_at
