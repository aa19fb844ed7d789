"""A snapshot: everything that one view of the page shows of the database, at one moment; and what it means."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from onefold.dashboard import engine, flow, rollups, summaries
from onefold.dashboard.engine import Engine, Verdict
from onefold.dashboard.flow import Flow
from onefold.dashboard.reader import Reader
from onefold.dashboard.rollups import Level, Rollup, Sum
from onefold.dashboard.summaries import Summary

# What a producer last reported has had this long to reach Kafka before a difference counts as one: its sums run ahead of
# the transaction that it is filling.
REPORT_AGE_MIN = timedelta(seconds=5)
SEE_WHICH_ROWS = "Run onefold verify to see which rows."

#: What a view asks for, as in the address: ("of", rollup) and the names of the levels.
View = tuple[tuple[str, str], ...]
Lag = Mapping[str, Mapping[str, int | None]]
Tone = Literal["good", "busy", "bad", "quiet"]


@dataclass(frozen=True)
class Snapshot:
    """What a view shows.

    Attributes:
        rollup, level, flow: None in a database that has no rollup.
    """

    engine: Engine
    rollups: Collection[Rollup]
    rollup: Rollup | None
    level: Level | None
    flow: Flow | None
    summaries: Collection[Summary] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The last verdict on the rollup's domain."""
        domain = self.engine.domains.get(self.rollup.schema) if self.rollup else None
        return domain.verdict if domain else None

    @property
    def verified(self) -> bool:
        """Whether that was "valid", and nothing has landed since."""
        return self.verdict is not None and self.verdict.outcome == "valid" and self.verdict.since == 0


@dataclass(frozen=True)
class LagNow:
    """The lag as Kafka gave it last.

    Attributes:
        lag: per domain, as `operate.positions` has it.
        asked_at, answered_at: when, by the database's clock; None before the first answer.
        problem: why it is unknown, in one sentence.
    """

    lag: Lag
    asked_at: datetime | None
    answered_at: datetime | None
    problem: str = ""

    def of(self, domain: str) -> int | None:
        """Events of a domain that are not landed yet."""
        return self.lag.get(domain, {}).get("events")


@dataclass(frozen=True)
class Headline:
    """The one thing first."""

    tone: Tone
    text: str
    detail: str


async def take(reader: Reader, views: Collection[View]) -> dict[View, Snapshot]:
    """The snapshots of several views, all of one moment. Raises psycopg.Error."""
    async with reader.snapshot() as connection:
        state = await engine.fetch(connection)
        found = await rollups.find(connection)
        flows = {rollup.schema: await flow.fetch(connection, rollup.schema) for rollup in found if rollup.has_landed}
        reported = await summaries.fetch(connection)
        snapshots = {}
        for view in views:
            rollup = _chosen(found, view)
            level = await rollups.fetch(connection, rollup, rollup.path(dict(view))) if rollup else None
            snapshots[view] = Snapshot(
                state, found, rollup, level, flows.get(rollup.schema) if rollup else None, reported
            )
    return snapshots


def _chosen(found: list[Rollup], view: View) -> Rollup | None:
    """The rollup that the address names, else the first."""
    wanted = dict(view).get("of")
    return next((rollup for rollup in found if rollup.name == wanted), found[0] if found else None)


def headline(snapshot: Snapshot, lag: LagNow) -> Headline:
    """What the numbers mean, in a few words; worst things first."""
    level, verdict = snapshot.level, snapshot.verdict
    if broken := [text for summary in snapshot.summaries for text in summary.broken]:
        return Headline("bad", "An invariant is broken", f"{broken[0]}. {SEE_WHICH_ROWS}")
    if snapshot.rollup is None and any(summary.rules for summary in snapshot.summaries):
        return Headline("good", "All invariants hold", "The tables say so, asked in one snapshot.")
    if level is None or (level.node.ours is None and level.node.truth is None):
        return Headline("quiet", "Nothing has landed yet", "Numbers appear here with the first batch.")
    if level.adds_up is False:
        return Headline("bad", "The levels do not add up", "The sums of one level differ from another level's sums.")
    if verdict and verdict.outcome == "invalid":
        return Headline("bad", "Verified, and found wrong", f"{_sentence(verdict.reason)} {SEE_WHICH_ROWS}")
    difference = level.node.difference
    if difference is None:
        return Headline("quiet", "No producer to compare with", "No producer has reported sums of its own.")
    if difference:
        return _different(snapshot, difference, lag)
    if snapshot.verified:
        return Headline("good", "Equal, and verified", "Every row was recomputed from the log of messages.")
    return Headline("good", "Equal", "The pipeline holds what the producer sent.")


def _different(snapshot: Snapshot, difference: Sum, lag: LagNow) -> Headline:
    """Sums that differ are wrong only when nothing is on the way any more."""
    assert snapshot.rollup is not None
    events = lag.of(snapshot.rollup.schema)
    if events is None:
        why = lag.problem or "Kafka has not been asked yet."
        return Headline("quiet", "They differ", f"How much is on the way is unknown: {why}")
    if events == 0 and _is_conclusive(snapshot, lag):
        return Headline(
            "bad", "They differ", f"Nothing is on the way, and the sums are not the same. {_where(snapshot)}"
        )
    things = snapshot.rollup.count.replace("_", " ")
    text = f"{abs(difference.count):,} {things} on the way" if difference.count else "On the way"
    detail = f"{events:,} events are still to be folded or landed." if events else "The last of them are landing."
    return Headline("busy", text, detail)


def _where(snapshot: Snapshot) -> str:
    """Where the difference arose: behind the log, or before it."""
    if snapshot.verified:
        return "Every row follows from the log, so the log holds something else than the producer reported."
    return SEE_WHICH_ROWS


def _is_conclusive(snapshot: Snapshot, lag: LagNow) -> bool:
    """Whether the producer reported, then Kafka was asked, then this snapshot was taken: in this order."""
    reported_at = snapshot.level.reported_at if snapshot.level else None
    if reported_at is None or lag.asked_at is None or lag.answered_at is None:
        return False
    return reported_at + REPORT_AGE_MIN < lag.asked_at and lag.answered_at < snapshot.engine.taken_at


def _sentence(text: str) -> str:
    """A reason of the judge, as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
