"""A picture: everything that one view of the page shows of the database, of one moment; and what it means."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from onefold.dashboard import cubes, engine, flow
from onefold.dashboard.cubes import Cube, Level, Sum
from onefold.dashboard.engine import Engine, Verdict
from onefold.dashboard.flow import Flow
from onefold.dashboard.reader import Reader

# What a producer last said has had this long to reach Kafka before a difference counts as one: its sums run ahead of
# the transaction that it is filling.
SETTLED_AFTER = timedelta(seconds=5)
WHICH_ROWS = "Run onefold verify to see which rows."

#: What a view asks for, as in the address: ("of", cube) and the names of the levels.
View = tuple[tuple[str, str], ...]
Lag = Mapping[str, Mapping[str, int | None]]
Tone = Literal["good", "busy", "bad", "quiet"]


@dataclass(frozen=True)
class Picture:
    """cube, level and flow are None in a database that has no cube."""

    engine: Engine
    cubes: Collection[Cube]
    cube: Cube | None
    level: Level | None
    flow: Flow | None

    @property
    def verdict(self) -> Verdict | None:
        """The last verdict on the cube's domain."""
        domain = self.engine.domains.get(self.cube.schema) if self.cube else None
        return domain.verdict if domain else None

    @property
    def verified(self) -> bool:
        """Whether that was "valid", and nothing has landed since."""
        return self.verdict is not None and self.verdict.outcome == "valid" and self.verdict.since == 0


@dataclass(frozen=True)
class LagNow:
    """lag: per domain as `operate.positions` reports it. asked_at, answered_at: when, by the database's clock; None before the
    first answer. problem: why it can not be told.
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


async def take(reader: Reader, views: Collection[View]) -> dict[View, Picture]:
    """The pictures of several views, all from one snapshot. Raises psycopg.Error."""
    async with reader.snapshot() as connection:
        state = await engine.look(connection)
        found = await cubes.find(connection)
        flows = {cube.schema: await flow.look(connection, cube.schema) for cube in found if cube.has_landed}
        pictures = {}
        for view in views:
            cube = _chosen(found, view)
            level = await cubes.look(connection, cube, cube.path(dict(view))) if cube else None
            pictures[view] = Picture(state, found, cube, level, flows.get(cube.schema) if cube else None)
    return pictures


def _chosen(found: list[Cube], view: View) -> Cube | None:
    """The cube that the address names, else the first."""
    wanted = dict(view).get("of")
    return next((cube for cube in found if cube.name == wanted), found[0] if found else None)


def headline(picture: Picture, lag: LagNow) -> Headline:
    """What the numbers say, in a few words; worst things first."""
    level, verdict = picture.level, picture.verdict
    if level is None or (level.node.ours is None and level.node.truth is None):
        return Headline("quiet", "Nothing has landed yet", "Numbers appear here with the first batch.")
    if level.adds_up is False:
        return Headline("bad", "The levels do not add up", "The sums of one level differ from another level's sums.")
    if verdict and verdict.outcome == "invalid":
        return Headline("bad", "Verified, and found wrong", f"{_sentence(verdict.reason)} {WHICH_ROWS}")
    difference = level.node.difference
    if difference is None:
        return Headline("quiet", "No producer to compare with", "No producer that keeps its own sums has spoken.")
    if difference:
        return _different(picture, difference, lag)
    if picture.verified:
        return Headline("good", "Equal, and verified", "Every row is what the log of messages says, recomputed.")
    return Headline("good", "Equal", "The pipeline holds what the producer sent.")


def _different(picture: Picture, difference: Sum, lag: LagNow) -> Headline:
    """Sums that differ are wrong only when nothing is on the way any more."""
    assert picture.cube is not None
    events = lag.of(picture.cube.schema)
    if events is None:
        why = lag.problem or "Kafka has not been asked yet."
        return Headline("quiet", "They differ", f"How much is on the way can not be told: {why}")
    if events == 0 and _settled(picture, lag):
        return Headline(
            "bad", "They differ", f"Nothing is on the way, and the sums are not the same. {_where(picture)}"
        )
    things = picture.cube.count.replace("_", " ")
    text = f"{abs(difference.count):,} {things} on the way" if difference.count else "On the way"
    detail = f"{events:,} events are still to be folded or landed." if events else "The last of them are landing."
    return Headline("busy", text, detail)


def _where(picture: Picture) -> str:
    """Where to look for the difference: behind the log, or before it."""
    if picture.verified:
        return "Every row is what the log says, so the log holds something else than the producer told."
    return WHICH_ROWS


def _settled(picture: Picture, lag: LagNow) -> bool:
    """Whether the producer spoke, then Kafka was asked, then this picture was taken: in this order."""
    told_at = picture.level.told_at if picture.level else None
    if told_at is None or lag.asked_at is None or lag.answered_at is None:
        return False
    return told_at + SETTLED_AFTER < lag.asked_at and lag.answered_at < picture.engine.taken_at


def _sentence(text: str) -> str:
    """A reason of the judge, as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
