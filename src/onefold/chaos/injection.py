"""Injected failures in a set share of all batches, as tests of the recovery.

state: a processor's transaction fails right before the commit. The processor aborts the transaction, and processes the same
records again.

map: a task of the sink's Spark job fails. The sink reads the batch again, from the offsets in PostgreSQL.

reduce: the sink's transaction fails right before the commit. PostgreSQL rolls back, and the sink writes the batch again.

Off unless ONEFOLD_FAIL_STATE_PCT, _MAP_PCT or _REDUCE_PCT is set. A process with injection logs a warning at the start and
at each failure, and counts the failures in onefold.injected.
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

# Short, so that an unreachable database does not delay the tested process.
_CONNECT_S = 3

_COUNT = """
INSERT INTO onefold.injected AS i (stage, percent, failures, last_at)
VALUES (%(stage)s, %(percent)s, %(failures)s, CASE WHEN %(failures)s > 0 THEN clock_timestamp() END)
ON CONFLICT (stage) DO UPDATE SET percent = excluded.percent, failures = i.failures + excluded.failures,
    last_at = coalesce(excluded.last_at, i.last_at)
"""


class Injected(Exception):
    """An injected failure."""


class Dice:
    """Random decision, batch by batch, whether a stage fails."""

    def __init__(
        self,
        stage: str,
        percent: float,
        settings: Settings,
        draw: Callable[[], float] = random.random,  # noqa: S311 - the choice of failing batches is no secret
    ) -> None:
        self._stage, self._percent, self._settings, self._draw = stage, percent, settings, draw
        if percent:
            log.warning(f"FAILURES ARE INJECTED: {percent:g} % of the batches fail on purpose", stage=stage)
            self._count(0)

    def fails(self) -> bool:
        """Decide whether this batch fails; count and log a failure."""
        if not self._percent or self._draw() * 100 >= self._percent:
            return False
        log.warning("a failure is injected", stage=self._stage)
        self._count(1)
        return True

    def at(self, name: str, step: Step, failure: Callable[[str], Exception] = Injected) -> Step:
        """Wrap `step`, so that a random `failure` is raised at the point called `name`."""
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
