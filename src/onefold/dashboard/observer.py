"""Asks Kafka and PostgreSQL how far every pipeline is, once an interval, for the pages, /healthz and /metrics alike."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

import psycopg
import structlog

from onefold import postgres
from onefold.config import stack_state
from onefold.config.errors import UserError, first_line
from onefold.config.settings import Settings
from onefold.dashboard import tasks
from onefold.dashboard.dead import DeadCounts
from onefold.dashboard.history import History
from onefold.dashboard.known import Asked
from onefold.dashboard.movement import Movement, Seen
from onefold.dashboard.snapshot import NO_KAFKA, LagNow
from onefold.dashboard.standing import Dead
from onefold.operate import answering, held, lag, partitions, pausing, pipelines, positions, replicas
from onefold.operate.held import Held
from onefold.operate.lag import UNKNOWN
from onefold.operate.positions import Behind, Landed
from onefold.printable import sentence

EVERY_S = 3.0  # asking Kafka makes clients of its own, which cost more than a snapshot
DEAD_EVERY_S = 15.0  # a dead letter waits for a person
# To look at what is behind takes some ten milliseconds. Behind much that was aborted it takes seconds, and the next round begins.
LOOK_S = 5.0
# A server that is away is known to be after five seconds. One that freezes in the middle of an answer may be waited for without
# end, and whoever asks for health or metrics waits for ten seconds, often less.
ANSWER_S = 8.0
# An older answer is no answer: the next one is waited for.
FRESH_S = 10.0
# Longer than a minute, in which a slow scraper comes again, and for one that was lost. After that nothing is asked until somebody
# comes, and what was seen before says nothing of what has moved since.
WANTED_S = 150.0
# The tasks of a pipeline are asked for while somebody has its page open.
_OPEN_S = 10.0

log = structlog.get_logger("onefold.dashboard")


class Offsets(NamedTuple):
    """What the offsets say.

    Attributes:
        behind: what waits, of each pipeline whose topics are there.
        seen: of the same pipelines.
        problem: why nothing is known of any pipeline, or "".
        asked_at: when Kafka was asked, by the database's clock; None: the database did not answer.
    """

    behind: Mapping[str, Behind]
    seen: Mapping[str, Seen]
    problem: str = ""
    asked_at: datetime | None = None


class Looked(NamedTuple):
    """What takes longer to find out.

    Attributes:
        held: per pipeline what open transactions hide, which is in no lag; None: unknown.
    """

    asked: Asked
    held: Mapping[str, Sequence[Held]] | None = None


#: Nothing is known.
NOTHING = Looked(Asked(LagNow({}, None, None)))


class Observer:
    """Keeps what was answered last, and since when nothing moves. `run` has to run beside those who ask.

    Args:
        dsn: of the page's own login.
        clock: monotonic seconds.

    Attributes:
        offsets, looked: as answered last.
        movement: since when nothing moves, of what waits.
        asking_since: when the present question was asked, or the last one.
    """

    def __init__(self, settings: Settings, dsn: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._dsn = dsn
        self._clock = clock
        self.offsets = Offsets({}, {})
        self.looked = NOTHING
        self.movement = Movement(clock)
        self.asking_since = clock()
        self._landed, self._made = History(), History()
        self._answered_at: float | None = None
        self._wanted_at = clock()
        self._opened: dict[str, float] = {}
        self._wanted = asyncio.Event()
        self._turned = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None
        self._pauses = pausing.Watch(settings)
        self._dead_counts = DeadCounts(settings)
        self._dead: Mapping[str, Dead] = {}
        self._dead_at = clock() - DEAD_EVERY_S

    async def run(self) -> None:
        """Asks once an interval while somebody wants to know, for ever."""
        while True:
            if not self._wanted.is_set() or self._clock() - self._wanted_at > WANTED_S:
                self.offsets, self.looked, self.movement = Offsets({}, {}), NOTHING, Movement(self._clock)
                self._answered_at = None
                self._wanted.clear()
                await self._wanted.wait()
            await self._round()
            await asyncio.sleep(EVERY_S)

    def want(self, *opened: str) -> None:
        """Have the next rounds run. `opened`: the pipelines whose pages are open."""
        self._wanted_at = self._clock()
        self._opened |= dict.fromkeys(opened, self._wanted_at)
        self._wanted.set()

    async def recent(self) -> bool:
        """Wait for an answer of now, and no longer than somebody who asks for health would. False: there was none."""
        self.want()
        if self._answered_at is None or self._clock() - self._answered_at > FRESH_S:
            try:
                async with asyncio.timeout(ANSWER_S), self._turned:
                    await self._turned.wait()
            except TimeoutError:
                return False
        return True

    def now(self) -> Asked:
        """What there is to show on a page."""
        moves = self.movement
        names = self.looked.asked.lag.lag
        return replace(
            self.looked.asked,
            still_s={name: (moves.still_s(name, moves.FOLD), moves.still_s(name, moves.LAND)) for name in names},
            services=stack_state.read_running(self._settings.home).get("services", {}),
            landed_a_second={name: self._landed.a_second(name) for name in names},
            made_a_second={name: self._made.a_second(name) for name in names},
        )

    async def _round(self) -> None:
        self.asking_since = self._clock()
        try:
            found = await asyncio.to_thread(self._ask)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known, and whoever asks for health is told so
            log.warning(f"what waits cannot be asked for: {error!r}")
            found = Offsets({}, {}, first_line(error))
        self.take(found)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_now(found, self.asking_since))
        await asyncio.wait([self._looking], timeout=LOOK_S)
        self._answered_at = self._clock()
        async with self._turned:
            self._turned.notify_all()

    def take(self, found: Offsets) -> None:
        """What was answered, after what was answered before."""
        self.offsets = found
        for name in {*pipelines.domains(), *found.seen}:
            unknown = Seen(None, None, None, no_fold=found.problem, no_land=found.problem)
            self.movement.take(name, found.seen.get(name, unknown))
        at = time.time()
        self._landed.add(at, {name: one.landed for name, one in found.seen.items() if one.landed is not None})
        self._made.add(at, {name: one.made for name, one in found.seen.items() if one.made is not None})

    async def _look_now(self, found: Offsets, asked_since: float) -> None:
        try:
            looked = await asyncio.to_thread(self._look, found)
        except UserError:  # the embedded stack has ended meanwhile
            looked = Looked(Asked(LagNow({}, None, None, NO_KAFKA)))
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known; the next round looks again
            log.warning(f"what is behind cannot be looked at: {error!r}")
            looked = Looked(Asked(LagNow({}, None, None, sentence(first_line(error)))))
        now, shown = self._clock(), looked.asked.lag
        for name, one in shown.lag.items():
            if one.input_events and one.input_s is not None:
                self.movement.oldest(name, now - one.input_s)
        answered_at = None if found.asked_at is None else found.asked_at + timedelta(seconds=now - asked_since)
        self.looked = looked._replace(
            asked=replace(looked.asked, lag=replace(shown, asked_at=found.asked_at, answered_at=answered_at))
        )

    def _ask(self) -> Offsets:
        """Blocks for some seconds when a server does not answer."""
        asked_at, no_landed = None, ""
        landed: Mapping[str, int] = {}
        try:
            asked_at, landed = _ledger(self._dsn)
        except psycopg.Error as error:  # the page may read as another user, or elsewhere
            no_landed = positions.unanswered(error)
        try:
            # A database that does not answer is waited for once.
            behind = positions.behind_of_all(self._settings, no_landed != positions.DATABASE_IS_SILENT)
        except UserError:
            return Offsets({}, {}, NO_KAFKA, asked_at)
        if behind is None:
            return Offsets({}, {}, answering.why_silent(self._settings), asked_at)
        seen = {name: _seen(one, landed.get(name, 0), no_landed) for name, one in behind.items()}
        return Offsets(behind, seen, "", asked_at)

    def _look(self, found: Offsets) -> Looked:
        """Blocks too. A Kafka that did not answer is not kept waiting for twice."""
        settings = self._settings
        why = found.problem or _silent(found.behind)
        problem = why if why == NO_KAFKA else why and sentence(why)
        lags = {} if why == NO_KAFKA else dict.fromkeys(pipelines.domains(), UNKNOWN)
        lags |= lag.looked_at(found.behind, settings)
        if problem:
            return Looked(Asked(LagNow(lags, None, None, problem), dead=self._dead))
        hidden = held.by_pipeline(settings)
        uneven = {name: one.partitions for name, one in lags.items() if one.partitions} | partitions.added(settings)
        paused = {name: str(pause) for name, pause in self._pauses.look().items()}
        if self._clock() - self._dead_at >= DEAD_EVERY_S:
            self._dead = self._dead_counts.look()
            self._dead_at = self._clock()
        opened = [name for name, at in [*self._opened.items()] if self._clock() - at < _OPEN_S]
        asked = Asked(
            LagNow(
                lags,
                None,
                None,
                "",
                [*dict.fromkeys(one for those in (hidden or {}).values() for one in those)],
                uneven,
                paused,
            ),
            dead=self._dead,
            replicas=replicas.replicas_of_all(settings),
            tasks={name: tasks.of(name, settings) for name in opened},
        )
        return Looked(asked, hidden)


def _ledger(dsn: str) -> tuple[datetime | None, Mapping[str, int]]:
    """The database's time, and per sink the sum of the offsets that it writes next. Raises psycopg.Error."""
    with postgres.connect(
        dsn, "onefold dashboard", settings=postgres.READ_ONLY, connect_s=positions.CALL_S, patience_s=positions.CALL_S
    ) as connection:
        (now,) = connection.execute("SELECT now()").fetchone() or (None,)
        landed: Counter[str] = Counter()
        with suppress(psycopg.errors.UndefinedTable):  # before the first table was made
            for row in map(Landed._make, connection.execute(positions.LEDGER)):
                landed[row.sink] += row.next_offset
        return now, landed


def _seen(now: Behind, landed: int, no_landed: str) -> Seen:
    to_fold, to_land = (None if ranges is None else positions.offsets(ranges) for ranges in (now.inputs, now.outputs))
    if to_land is None or no_landed:
        return Seen(to_fold, to_land, None, no_fold=now.no_inputs, no_land=now.no_outputs or no_landed)
    return Seen(to_fold, to_land, landed, no_fold=now.no_inputs)


def _silent(behind: Mapping[str, Behind]) -> str:
    """Why the inputs of no pipeline are known, or ""."""
    if any(one.inputs is not None for one in behind.values()):
        return ""
    return next((one.no_inputs for one in behind.values() if one.no_inputs), "")
