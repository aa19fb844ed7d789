"""Failures on purpose, in a stated share of all batches: what the seed does to its functions, for the same reason.

state    a processor's transaction fails right before its commit: it is aborted, and the same records are folded again
map      a task of the sink's Spark job fails: the batch is read again, from what Postgres holds
reduce   the sink's transaction fails right before its commit: everything is rolled back, and landed again

Off unless ONEFOLD_FAIL_STATE_PCT, _MAP_PCT or _REDUCE_PCT is set. A process that injects logs it when it starts and at each
failure, and counts them in onefold.injected.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from onefold.chaos.failpoint import Step
from onefold.config.errors import UserError, first_line

if TYPE_CHECKING:
    from onefold.config.settings import Settings

log = structlog.get_logger()

# A count that does not get through must not hold up what is being tested for long.
_CONNECT_S = 3

_COUNT = """
INSERT INTO onefold.injected AS i (stage, percent, failures, last_at)
VALUES (%(stage)s, %(percent)s, %(failures)s, CASE WHEN %(failures)s > 0 THEN clock_timestamp() END)
ON CONFLICT (stage) DO UPDATE SET percent = excluded.percent, failures = i.failures + excluded.failures,
    last_at = coalesce(excluded.last_at, i.last_at)
"""


class Injected(Exception):
    """A failure that was asked for."""


class Dice:
    """Decides, batch by batch, whether a stage fails."""

    def __init__(
        self,
        stage: str,
        percent: float,
        settings: Settings,
        draw: Callable[[], float] = random.random,  # noqa: S311 - which record a fault hits is no secret
    ) -> None:
        self._stage, self._percent, self._settings, self._draw = stage, percent, settings, draw
        if percent:
            log.warning(f"FAILURES ARE INJECTED: {percent:g} % of the batches fail on purpose", stage=stage)
            self._count(0)

    def fails(self) -> bool:
        """Should this one fail? Counted and logged when it should."""
        if not self._percent or self._draw() * 100 >= self._percent:
            return False
        log.warning("a failure is injected", stage=self._stage)
        self._count(1)
        return True

    def at(self, name: str, step: Step, failure: Callable[[str], Exception] = Injected) -> Step:
        """`step`, which at the point called `name` also raises a `failure` when the dice decide so."""
        if not self._percent:
            return step

        def risky(reached: str) -> None:
            step(reached)
            if reached == name and self.fails():
                raise failure(f"a failure of {self._stage} was injected")

        return risky

    def _count(self, failures: int) -> None:
        import psycopg

        from onefold import postgres

        row = {"stage": self._stage, "percent": self._percent, "failures": failures}
        try:
            dsn = self._settings.postgres()
            with postgres.connect(dsn, "onefold chaos", connect_s=_CONNECT_S, patience_s=_CONNECT_S) as connection:
                connection.execute(_COUNT, row)
        except (psycopg.Error, UserError) as error:
            log.warning("an injected failure was not counted", reason=first_line(error))
