"""Metrics of the whole: the lag of each pipeline, and whether what waits gets less.

Each service says of itself whether it gets on. What no service can say is that there is none: a pipeline whose processor or
sink is not there has nobody who would tell.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from onefold.config.metrics_server import METRICS_TYPE, Exposed
from onefold.dashboard.answers import HEADERS
from onefold.dashboard.movement import Movement, Seen
from onefold.dashboard.observer import NOTHING, Observer
from onefold.operate import pipelines
from onefold.operate.held import Held
from onefold.operate.lag import UNKNOWN
from onefold.telemetry import HELD_S, LAG_EVENTS, LAG_S, LAG_TO_FOLD, LAG_TO_LAND

TEXT = "text/plain; charset=utf-8"


class Totals:
    """Tells what the observer has seen.

    Args:
        stall_s: from then on what waits is no health.
        clock: that of the observer, monotonic seconds.
    """

    def __init__(self, observer: Observer, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._domains = pipelines.domains()
        self._stall_s = stall_s
        self._told = Exposed("dashboard", self._domains, stall_s)
        self._clock = clock

    async def metrics(self, request: Request) -> Response:
        """/metrics"""
        self.tell(answered=await self._observer.recent())
        return Response(self._told.metrics(), headers=HEADERS, media_type=METRICS_TYPE)

    async def healthz(self, request: Request) -> Response:
        """/healthz"""
        self.tell(answered=await self._observer.recent())
        status, text = self._told.healthz()
        return Response(f"{text}\n", status, headers=HEADERS, media_type=TEXT)

    def tell(self, *, answered: bool = True) -> None:
        """What the observer saw last. Not answered: what was seen stays for comparing, and nobody knows how it is now."""
        offsets, since = self._observer.offsets, self._observer.asking_since
        looked = self._observer.looked if answered else NOTHING
        problem = (
            offsets.problem if answered else f"Kafka or PostgreSQL has not answered for {self._clock() - since:.0f} s"
        )
        for domain in self._domains:
            now = Seen(None, None, None, no_fold=problem, no_land=problem)
            now = offsets.seen.get(domain, now) if answered else now
            parts = (
                (LAG_TO_FOLD, Movement.FOLD, now.to_fold, now.no_fold),
                (LAG_TO_LAND, Movement.LAND, now.to_land, now.no_land),
            )
            for name, part, waiting, unknown in parts:
                self._told.put(name, math.nan if waiting is None else waiting, domain=domain)
                moved_at = self._observer.movement.moved_at(domain, part)
                why = unknown or f"{waiting or 0:,} offsets wait"
                self._told.stands(domain, part, moved_at if answered else min(moved_at, since), why)
            behind = looked.asked.lag.lag.get(domain, UNKNOWN)
            those = None if looked.held is None else looked.held.get(domain)
            hidden_s = None if those is None else self._tell_held(domain, those)
            for name, value in ((LAG_EVENTS, behind.events), (LAG_S, behind.seconds), (HELD_S, hidden_s)):
                # An alarm that compares with a bound takes NaN for well; that a series is absent can be asked.
                if value is None:
                    self._told.withdraw(name, domain=domain)
                else:
                    self._told.put(name, value, domain=domain)

    def _tell_held(self, domain: str, those: Sequence[Held]) -> float:
        """For how many seconds the longest has been open. What is held for longer than anything may stand still is no health."""
        longest = max(those, key=lambda one: one.age_s, default=None)
        stands = longest is not None and longest.age_s > self._stall_s
        self._told.faulty(domain, str(longest) if stands else "")
        return 0.0 if longest is None else longest.age_s
