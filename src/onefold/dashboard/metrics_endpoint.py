"""Metrics and health of all pipelines: the lag, and whether the backlog makes progress.

Each service reports its own progress. A missing processor or sink cannot report, so the dashboard observes from outside.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from onefold.config.metrics_server import METRICS_TYPE, Exposed
from onefold.dashboard.answers import HEADERS
from onefold.dashboard.observer import NOTHING, Observer
from onefold.dashboard.stall import Movement, Seen
from onefold.operate import pipelines
from onefold.operate.hanging_transactions import Held
from onefold.operate.lag import UNKNOWN
from onefold.telemetry import HELD_S, LAG_EVENTS, LAG_S, LAG_TO_FOLD, LAG_TO_LAND

TEXT = "text/plain; charset=utf-8"


class Totals:
    """Metrics and health from the last observation.

    Args:
        stall_s: a backlog without progress for this long is unhealthy.
        clock: the observer's clock, monotonic seconds.
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
        """Publish the last observation. If `answered` is False, publish unknown values, and only the time of the last progress
        remains."""
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
                # A comparison with NaN raises no alert, but a rule can detect an absent series.
                if value is None:
                    self._told.withdraw(name, domain=domain)
                else:
                    self._told.put(name, value, domain=domain)

    def _tell_held(self, domain: str, those: Sequence[Held]) -> float:
        """Return the age in seconds of the longest open transaction, 0 without one. Older than `stall_s`, it makes /healthz
        fail."""
        longest = max(those, key=lambda one: one.age_s, default=None)
        stands = longest is not None and longest.age_s > self._stall_s
        self._told.faulty(domain, str(longest) if stands else "")
        return 0.0 if longest is None else longest.age_s
