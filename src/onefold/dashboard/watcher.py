"""Reads the database once a second while somebody has the page open, once for all viewers; and once a minute for the last day."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import psycopg
import structlog

from onefold import rights
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.dashboard import engine, tasks
from onefold.dashboard.day import MINUTE_S, Day, Minute
from onefold.dashboard.dead import DeadCounts
from onefold.dashboard.history import History
from onefold.dashboard.known import Asked
from onefold.dashboard.movement import Movement, Seen
from onefold.dashboard.panels import Reading
from onefold.dashboard.reader import Reader, trouble_of
from onefold.dashboard.snapshot import NO_KAFKA, LagNow, Lags, OfPipeline, Snapshot, View, take
from onefold.dashboard.standing import Dead
from onefold.dashboard.tasks import Task
from onefold.operate import held, lag, partitions, pausing, replicas
from onefold.operate.replicas import ReplicasNow
from onefold.printable import sentence

EVERY_S = 1.0  # often enough for a live page, and a snapshot takes a small part of it
LAG_EVERY_S = 3.0  # asking Kafka makes clients of their own, which cost more than a snapshot
DEAD_EVERY_S = 15.0  # a dead letter waits for a person
# After nobody has looked for so long, what was seen before says nothing of what has moved since.
FORGET_S = 30.0

AGAIN = "This is asked again every second."

log = structlog.get_logger("onefold.dashboard")


@dataclass(frozen=True)
class Update:
    """What there is to show.

    Attributes:
        snapshot: the last good one, None before the first.
        trouble: one sentence while the database does not answer, "" else.
        asked: of Kafka and of the stack, as asked last.
        replicas: of the pipelines that have some, as asked last.
        landed, made: how fast offsets are landed, and written.
        day: how it was in the last day.
        tasks: of the pipelines that are looked at, as asked last; None where Kafka did not answer.
    """

    snapshot: Snapshot | None
    trouble: str
    asked: Asked
    replicas: Mapping[str, ReplicasNow] = field(default_factory=dict)
    landed: History = field(default_factory=History)
    made: History = field(default_factory=History)
    day: Day | None = None
    tasks: Mapping[str, Sequence[Task] | None] = field(default_factory=dict)


class Watcher:
    """Hands updates to any number of viewers. `run` has to run beside them."""

    def __init__(self, reader: Reader, settings: Settings) -> None:
        self._reader = reader
        self._settings = settings
        self._watched: Counter[View] = Counter()
        self._reading = Reading()
        self._snapshots: dict[View, Snapshot] = {}
        self._trouble = ""
        self._lag = LagNow({}, None, None)
        self._replicas: Mapping[str, ReplicasNow] = {}
        self._dead: Mapping[str, Dead] = {}
        self._dead_counts = DeadCounts(settings)
        self._dead_at = -DEAD_EVERY_S
        self._pauses = pausing.Watch(settings)
        self._tasks: Mapping[str, Sequence[Task] | None] = {}
        self._movement = Movement(time.monotonic)
        self._landed, self._made = History(), History()
        self._day = Day(settings.home / "run" / "history.jsonl")
        self._clock: tuple[datetime, float] | None = None
        self._turned = asyncio.Condition()
        self._somebody = asyncio.Event()

    @property
    def viewers(self) -> int:
        """How many there are now."""
        return self._watched.total()

    async def run(self) -> None:
        """Takes a snapshot a second of all views that are watched, for ever."""
        beside = [asyncio.create_task(self._run_lag()), asyncio.create_task(self._run_day())]
        try:
            while True:
                await self._somebody.wait()
                due = asyncio.get_running_loop().time() + EVERY_S
                await self._fetch(list(self._watched))
                async with self._turned:
                    self._turned.notify_all()
                left = due - asyncio.get_running_loop().time()
                # Trouble is shown for a while even when it took long to find: nobody reads what is there for a moment.
                await asyncio.sleep(EVERY_S if self._trouble else max(0.0, left))
        finally:
            for task in beside:
                task.cancel()

    async def once(self, view: View) -> Update:
        """The update of a view, now."""
        await self._fetch([view])
        update = self._update(view)
        self._forget(view)
        return update

    async def updates(self, view: View) -> AsyncIterator[Update]:
        """An update after every snapshot, until the caller has seen enough."""
        self._watched[view] += 1
        self._somebody.set()
        try:
            while True:
                async with self._turned:
                    await self._turned.wait()
                yield self._update(view)
        finally:
            self._watched[view] -= 1
            if not self._watched[view]:
                del self._watched[view]
                self._forget(view)
            if not self._watched:
                self._somebody.clear()

    async def _fetch(self, views: list[View]) -> None:
        try:
            taken = await take(self._reader, views, self._reading)
        except psycopg.Error as error:
            if not self._trouble:
                log.warning(f"no snapshot: {error!r}")
            self._trouble = await asyncio.to_thread(self._lacking, error) or f"{trouble_of(error)} {AGAIN}"
            return
        self._trouble = ""
        self._snapshots |= taken
        for snapshot in taken.values():
            self._clock = snapshot.engine.taken_at, time.monotonic()
            self._landed.add(snapshot.engine.taken_at.timestamp(), _landed(snapshot))

    def _lacking(self, error: psycopg.Error) -> str:
        """The rights of a reader that are missing, if that is what `error` means, or ""."""
        if not isinstance(error, psycopg.errors.InsufficientPrivilege):
            return ""
        with suppress(psycopg.Error), closing(self._reader.another()) as connection:
            return sentence(rights.lacking(connection, rights.of_engine(rights.Role.READER)))
        return ""

    def _database_clock(self) -> datetime | None:
        """About now, by the clock that stamps snapshots; None before the first snapshot."""
        if self._clock is None:
            return None
        taken_at, then = self._clock
        return taken_at + timedelta(seconds=time.monotonic() - then)

    def _update(self, view: View) -> Update:
        services = stack_state.read_running(self._settings.home).get("services", {})
        moves = self._movement
        still = {name: (moves.still_s(name, moves.FOLD), moves.still_s(name, moves.LAND)) for name in self._lag.lag}
        asked = Asked(self._lag, still, services, self._dead)
        snapshot = self._snapshots.get(view)
        return Update(snapshot, self._trouble, asked, self._replicas, self._landed, self._made, self._day, self._tasks)

    def _forget(self, view: View) -> None:
        if view not in self._watched:
            self._snapshots.pop(view, None)

    async def _run_lag(self) -> None:
        while True:
            rested_at = time.monotonic()
            await self._somebody.wait()
            if time.monotonic() - rested_at > FORGET_S:
                self._movement = Movement(time.monotonic)
            asked_at = self._database_clock()
            found, problem = await asyncio.to_thread(ask_lag, self._settings)
            answered_at = self._database_clock()
            self._moved(found, problem)
            # A Kafka that did not answer is not kept waiting for twice.
            stuck = () if problem else tuple(await asyncio.to_thread(held.held, self._settings))
            uneven = {} if problem else await asyncio.to_thread(partitions.added, self._settings)
            uneven = {name: one.partitions for name, one in found.items() if one.partitions} | uneven
            paused = {} if problem else await asyncio.to_thread(self._pauses.look)
            self._lag = LagNow(
                found,
                asked_at,
                answered_at,
                problem,
                stuck,
                uneven,
                {name: str(pause) for name, pause in paused.items()},
            )
            self._replicas = {} if problem else await asyncio.to_thread(replicas.replicas_of_all, self._settings)
            looked_at = sorted({view.name for view in self._watched if isinstance(view, OfPipeline)})
            self._tasks = (
                {} if problem else {name: await asyncio.to_thread(tasks.of, name, self._settings) for name in looked_at}
            )
            if not problem and time.monotonic() - self._dead_at > DEAD_EVERY_S:
                self._dead = await asyncio.to_thread(self._dead_counts.look)
                self._dead_at = time.monotonic()
            await asyncio.sleep(LAG_EVERY_S)

    async def _run_day(self) -> None:
        while True:
            await asyncio.sleep(MINUTE_S - time.time() % MINUTE_S)
            found, _ = await asyncio.to_thread(ask_lag, self._settings)
            landed: Mapping[str, engine.DomainState] = {}
            with suppress(psycopg.Error):
                async with self._reader.snapshot() as connection:
                    landed = (await engine.fetch(connection)).domains
            minutes = {
                name: Minute(landed[name].landed if name in landed else None, one.events, one.seconds)
                for name, one in found.items()
            }
            self._day.add(time.time(), minutes)

    def _moved(self, found: Lags, problem: str) -> None:
        """Whether what waits has moved since it was asked last."""
        now = time.monotonic()
        landed = _landed(next(iter(self._snapshots.values()), None))
        sums = {}
        for name, one in found.items():
            oldest_at = now - one.input_s if one.input_events and one.input_s is not None else None
            seen = Seen(one.input_events, one.output_events, landed.get(name), oldest_at, problem, problem)
            self._movement.take(name, seen)
            if seen.made is not None:
                sums[name] = seen.made
        self._made.add(time.time(), sums)


def _landed(snapshot: Snapshot | None) -> dict[str, int]:
    """Per pipeline the sum of the offsets that it lands next."""
    return {} if snapshot is None else {name: one.landed for name, one in snapshot.engine.domains.items()}


def ask_lag(settings: Settings) -> tuple[Lags, str]:
    """The lag of every domain, and why it is unknown. Blocks for some seconds when Kafka does not answer."""
    try:
        found = lag.of_all(settings)
    except UserError:
        return {}, NO_KAFKA
    silent = [one.no_inputs for one in found.values() if one.input_events is None]
    why = next(filter(None, silent), "") if len(silent) == len(found) else ""
    return found, why and sentence(why)
