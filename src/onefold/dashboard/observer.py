"""Query the progress of every pipeline from Kafka and PostgreSQL at intervals, for the pages, /healthz and /metrics."""

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
from onefold.dashboard.dead_letter_counts import DeadCounts
from onefold.dashboard.history import RecentSums
from onefold.dashboard.pipeline_facts import AskedKafka
from onefold.dashboard.pipeline_status import Dead
from onefold.dashboard.snapshot import NO_KAFKA, LagNow
from onefold.dashboard.stall import Movement, Seen
from onefold.operate import hanging_transactions, lag, offsets, partitions, pausing, ping, pipelines, replicas
from onefold.operate.hanging_transactions import Held
from onefold.operate.lag import UNKNOWN
from onefold.operate.offsets import Behind, Landed
from onefold.printable import sentence

EVERY_S = 3.0  # each round makes Kafka clients, which cost more than a snapshot
DEAD_EVERY_S = 15.0  # a person handles dead letters, so seconds do not matter
# A look at the oldest waiting records is usually fast, but takes seconds behind many aborted records. The next round then
# begins without its result.
LOOK_S = 5.0
# An absent server is detected after five seconds, but a server that freezes during an answer never answers. Clients of /healthz
# and /metrics often time out after ten seconds or less.
ANSWER_S = 8.0
# /healthz waits for a new answer if the last one is older.
FRESH_S = 10.0
# Longer than the minute of a slow scraper, and one lost scrape. Without requests for this long, the observer pauses and forgets
# its observations, because they say nothing about progress since.
WANTED_S = 150.0
# Tasks of a pipeline are queried only while a viewer has its page open.
_OPEN_S = 10.0

log = structlog.get_logger("onefold.dashboard")


class Offsets(NamedTuple):
    """Progress by the offsets.

    Attributes:
        behind: backlog of each pipeline whose topics exist.
        seen: counts of the same pipelines.
        problem: reason why all backlogs are unknown, or "".
        asked_at: database time at the request to Kafka; None: the database did not answer.
    """

    behind: Mapping[str, Behind]
    seen: Mapping[str, Seen]
    problem: str = ""
    asked_at: datetime | None = None


class Observation(NamedTuple):
    """Results of the slower queries.

    Attributes:
        held: open transactions per pipeline, whose hidden records no lag includes; None: unknown.
    """

    asked: AskedKafka
    held: Mapping[str, Sequence[Held]] | None = None


#: The observation before the first answer.
NOTHING = Observation(AskedKafka(LagNow({}, None, None)))


class Observer:
    """Observer that keeps the last answers and the time of the last progress. `run` must run as a task beside the callers.

    Args:
        dsn: connection string of the dashboard's own login.
        clock: monotonic seconds.

    Attributes:
        offsets, looked: last answers.
        movement: time of the last progress of each backlog.
        asking_since: start of the present round, or of the last one.
    """

    def __init__(self, settings: Settings, dsn: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._dsn = dsn
        self._clock = clock
        self.offsets = Offsets({}, {})
        self.looked = NOTHING
        self.movement = Movement(clock)
        self.asking_since = clock()
        self._landed, self._made = RecentSums(), RecentSums()
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
        """Query at intervals while there are requests, for ever."""
        while True:
            if not self._wanted.is_set() or self._clock() - self._wanted_at > WANTED_S:
                self.offsets, self.looked, self.movement = Offsets({}, {}), NOTHING, Movement(self._clock)
                self._answered_at = None
                self._wanted.clear()
                await self._wanted.wait()
            await self._round()
            await asyncio.sleep(EVERY_S)

    def want(self, *opened: str) -> None:
        """Request further rounds. `opened`: pipelines whose pages are open."""
        self._wanted_at = self._clock()
        self._opened |= dict.fromkeys(opened, self._wanted_at)
        self._wanted.set()

    async def recent(self) -> bool:
        """Wait for a fresh answer, no longer than a health client waits. Return False if none came."""
        self.want()
        if self._answered_at is None or self._clock() - self._answered_at > FRESH_S:
            try:
                async with asyncio.timeout(ANSWER_S), self._turned:
                    await self._turned.wait()
            except TimeoutError:
                return False
        return True

    def now(self) -> AskedKafka:
        """Return the last answers for a page."""
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
        except Exception as error:  # noqa: BLE001 - after any failure all values are unknown, and /healthz reports the failure
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
        """Record an observation after the ones before."""
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
        except UserError:  # the embedded stack has stopped meanwhile
            looked = Observation(AskedKafka(LagNow({}, None, None, NO_KAFKA)))
        except Exception as error:  # noqa: BLE001 - after any failure the values are unknown, and the next round looks again
            log.warning(f"what is behind cannot be looked at: {error!r}")
            looked = Observation(AskedKafka(LagNow({}, None, None, sentence(first_line(error)))))
        now, shown = self._clock(), looked.asked.lag
        for name, one in shown.lag.items():
            if one.input_events and one.input_s is not None:
                self.movement.oldest(name, now - one.input_s)
        answered_at = None if found.asked_at is None else found.asked_at + timedelta(seconds=now - asked_since)
        self.looked = looked._replace(
            asked=replace(looked.asked, lag=replace(shown, asked_at=found.asked_at, answered_at=answered_at))
        )

    def _ask(self) -> Offsets:
        """Query the offsets. Blocks for several seconds if a server does not answer."""
        asked_at, no_landed = None, ""
        landed: Mapping[str, int] = {}
        try:
            asked_at, landed = _ledger(self._dsn)
        except psycopg.Error as error:  # the dashboard may have another login or another database
            no_landed = offsets.unanswered(error)
        try:
            # Wait for a silent database only once per round.
            behind = offsets.behind_of_all(self._settings, no_landed != offsets.DATABASE_IS_SILENT)
        except UserError:
            return Offsets({}, {}, NO_KAFKA, asked_at)
        if behind is None:
            return Offsets({}, {}, ping.why_silent(self._settings), asked_at)
        seen = {name: _seen(one, landed.get(name, 0), no_landed) for name, one in behind.items()}
        return Offsets(behind, seen, "", asked_at)

    def _look(self, found: Offsets) -> Observation:
        """Look at the waiting records, in blocking calls. If Kafka did not answer the first questions, skip the further ones."""
        settings = self._settings
        why = found.problem or _silent(found.behind)
        problem = why if why == NO_KAFKA else why and sentence(why)
        lags = {} if why == NO_KAFKA else dict.fromkeys(pipelines.domains(), UNKNOWN)
        lags |= lag.looked_at(found.behind, settings)
        if problem:
            return Observation(AskedKafka(LagNow(lags, None, None, problem), dead=self._dead))
        hidden = hanging_transactions.by_pipeline(settings)
        uneven = {name: one.partitions for name, one in lags.items() if one.partitions} | partitions.added(settings)
        paused = {name: str(pause) for name, pause in self._pauses.look().items()}
        if self._clock() - self._dead_at >= DEAD_EVERY_S:
            self._dead = self._dead_counts.look()
            self._dead_at = self._clock()
        opened = [name for name, at in [*self._opened.items()] if self._clock() - at < _OPEN_S]
        asked = AskedKafka(
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
        return Observation(asked, hidden)


def _ledger(dsn: str) -> tuple[datetime | None, Mapping[str, int]]:
    """Database time, and the sum of the next offsets per sink. Raises psycopg.Error."""
    with postgres.connect(
        dsn, "onefold dashboard", settings=postgres.READ_ONLY, connect_s=offsets.CALL_S, patience_s=offsets.CALL_S
    ) as connection:
        (now,) = connection.execute("SELECT now()").fetchone() or (None,)
        landed: Counter[str] = Counter()
        with suppress(psycopg.errors.UndefinedTable):  # no table exists yet
            for row in map(Landed._make, connection.execute(offsets.LEDGER)):
                landed[row.sink] += row.next_offset
        return now, landed


def _seen(now: Behind, landed: int, no_landed: str) -> Seen:
    to_fold, to_land = (None if ranges is None else offsets.offsets(ranges) for ranges in (now.inputs, now.outputs))
    if to_land is None or no_landed:
        return Seen(to_fold, to_land, None, no_fold=now.no_inputs, no_land=now.no_outputs or no_landed)
    return Seen(to_fold, to_land, landed, no_fold=now.no_inputs)


def _silent(behind: Mapping[str, Behind]) -> str:
    """Reason why the inputs of all pipelines are unknown, or ""."""
    if any(one.inputs is not None for one in behind.values()):
        return ""
    return next((one.no_inputs for one in behind.values() if one.no_inputs), "")
