"""Metrics of the whole: the lag of each pipeline, asked when somebody asks for it, and whether what waits gets less.

Each service says of itself whether it gets on. What no service can say is that there is none: a pipeline whose processor or
sink is not there has nobody who would tell.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import psycopg
import structlog
from starlette.requests import Request
from starlette.responses import Response

from onefold.config.errors import UserError, first_line
from onefold.config.metrics_server import METRICS_TYPE, Exposed
from onefold.config.settings import Settings
from onefold.dashboard.answers import HEADERS
from onefold.dashboard.movement import Movement, Seen
from onefold.operate import answering, held, lag, pipelines, positions
from onefold.operate.held import Held
from onefold.operate.lag import UNKNOWN, Lag
from onefold.operate.positions import Behind
from onefold.telemetry import HELD_S, LAG_EVENTS, LAG_S, LAG_TO_FOLD, LAG_TO_LAND

# Whoever asks more often is told the same: asking Kafka makes clients of their own.
ASK_EVERY_S = 5.0
# To look at what is behind takes some ten milliseconds, and behind much that was aborted some seconds, which no scrape has.
LOOK_S = 0.5
# A server that is away is known to be after five seconds. One that freezes in the middle of an answer may be waited for without
# end, and whoever asks for health or metrics waits for ten seconds, often less.
ANSWER_S = 8.0
TEXT = "text/plain; charset=utf-8"

log = structlog.get_logger("onefold.dashboard")


class Looked(NamedTuple):
    """What takes longer to find out.

    Attributes:
        lag: of each pipeline how many events are behind, and how old they are.
        held: of each what an open transaction hides, which is in no lag; None: nobody knows.
    """

    lag: Mapping[str, Lag] = {}
    held: Mapping[str, Sequence[Held]] | None = None


class Asked(NamedTuple):
    """What there is to tell of the pipelines.

    Attributes:
        seen: of each, without those whose topics are missing.
        problem: why nothing is known of any, or "".
        look: gives what takes longer.
    """

    seen: Mapping[str, Seen]
    problem: str = ""
    look: Callable[[], Looked] = Looked


def ask(settings: Settings, dsn: str) -> Asked:
    """What is seen of every pipeline now. Blocks for some seconds when a server does not answer."""
    try:
        behind = positions.behind_of_all(settings)
    except UserError as error:
        return Asked({}, error.message)
    if behind is None:
        return Asked({}, answering.why_silent(settings))
    seen = {domain: _seen(domain, now, dsn) for domain, now in behind.items()}
    return Asked(seen, look=partial(_look, behind, settings))


def _look(behind: Mapping[str, Behind], settings: Settings) -> Looked:
    return Looked(lag.looked_at(behind, settings), held.by_pipeline(settings))


def _seen(domain: str, now: Behind, dsn: str) -> Seen:
    to_fold, to_land = (None if ranges is None else positions.offsets(ranges) for ranges in (now.inputs, now.outputs))
    landed, no_land = None, now.no_outputs
    if to_land is not None:
        try:
            landed = sum(positions.landed(dsn, domain).values())
        except psycopg.Error as error:  # the page may read as another user, or elsewhere
            no_land = positions.unanswered(error)
    return Seen(to_fold, to_land, landed, no_fold=now.no_inputs, no_land=no_land)


class Totals:
    """Keeps what was seen, and since when nothing moves.

    Args:
        ask: gives what is seen now; called in a thread.
        clock: monotonic seconds.
    """

    def __init__(
        self, settings: Settings, ask: Callable[[], Asked], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._domains = pipelines.domains()
        self._stall_s = settings.stall_s
        self._told = Exposed("dashboard", self._domains, self._stall_s)
        self._ask = ask
        self._clock = clock
        self._movement = Movement(clock)
        self._asking: asyncio.Task[None] | None = None
        self._asking_since = self._asked_at = clock()
        self._looking: asyncio.Task[None] | None = None

    async def metrics(self, request: Request) -> Response:
        """/metrics"""
        await self._look()
        return Response(self._told.metrics(), headers=HEADERS, media_type=METRICS_TYPE)

    async def healthz(self, request: Request) -> Response:
        """/healthz"""
        await self._look()
        status, text = self._told.healthz()
        return Response(f"{text}\n", status, headers=HEADERS, media_type=TEXT)

    async def _look(self) -> None:
        """Have it told what is seen now, or that it is not known for now."""
        if self._asking is None or (self._asking.done() and self._clock() - self._asked_at > ASK_EVERY_S):
            self._asking_since = self._clock()
            self._asking = asyncio.create_task(self._ask_now())
        await asyncio.wait([self._asking], timeout=ANSWER_S)
        if not self._asking.done():
            self._unanswered()

    async def _ask_now(self) -> None:
        try:
            asked = await asyncio.to_thread(self._ask)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known, and whoever asks for health is told so
            log.warning(f"what waits cannot be asked for: {error!r}")
            asked = Asked({}, first_line(error))
        self.take(asked.seen, asked.problem)
        self._asked_at = self._clock()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_behind(asked.look))
        await asyncio.wait([self._looking], timeout=LOOK_S)

    async def _look_behind(self, look: Callable[[], Looked]) -> None:
        found = Looked()
        try:
            found = await asyncio.to_thread(look)
        except UserError:
            pass  # the embedded stack has ended meanwhile
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known; the next question looks again
            log.warning(f"what is behind cannot be looked at: {error!r}")
        self.take_looked(found)

    def _unanswered(self) -> None:
        """What was seen last stays for comparing; until there is an answer, nobody knows how it is now."""
        since_s = self._clock() - self._asking_since
        for domain in self._domains:
            for name in (LAG_TO_FOLD, LAG_TO_LAND):
                self._told.put(name, math.nan, domain=domain)
            for part in (Movement.FOLD, Movement.LAND):
                moved_at = min(self._movement.moved_at(domain, part), self._asking_since)
                self._told.stands(domain, part, moved_at, f"Kafka or PostgreSQL has not answered for {since_s:.0f} s")
        self.take_looked(Looked())

    def take_looked(self, found: Looked) -> None:
        """How far the pipelines are behind, as a person means it; and what nobody can see for an open transaction."""
        for domain in self._domains:
            now = found.lag.get(domain, UNKNOWN)
            those = None if found.held is None else found.held.get(domain)
            hidden_s = None if those is None else self._take_held(domain, those)
            for name, value in ((LAG_EVENTS, now.events), (LAG_S, now.seconds), (HELD_S, hidden_s)):
                # An alarm that compares with a bound takes NaN for well; that a series is absent can be asked.
                if value is None:
                    self._told.withdraw(name, domain=domain)
                else:
                    self._told.put(name, value, domain=domain)

    def _take_held(self, domain: str, those: Sequence[Held]) -> float:
        """For how many seconds the longest has been open. What is held for longer than anything may stand still is no health."""
        longest = max(those, key=lambda one: one.age_s, default=None)
        stands = longest is not None and longest.age_s > self._stall_s
        self._told.faulty(domain, str(longest) if stands else "")
        return 0.0 if longest is None else longest.age_s

    def take(self, found: Mapping[str, Seen], problem: str) -> None:
        """What was seen, after what was seen before."""
        for domain in self._domains:
            now = found.get(domain, Seen(None, None, None, no_fold=problem, no_land=problem))
            self._told.put(LAG_TO_FOLD, math.nan if now.to_fold is None else now.to_fold, domain=domain)
            self._told.put(LAG_TO_LAND, math.nan if now.to_land is None else now.to_land, domain=domain)
            self._movement.take(domain, now)
            parts = ((Movement.FOLD, now.to_fold, now.no_fold), (Movement.LAND, now.to_land, now.no_land))
            for part, waiting, unknown in parts:
                why = unknown or f"{waiting or 0:,} offsets wait"
                self._told.stands(domain, part, self._movement.moved_at(domain, part), why)
