"""The supervisor of a query. Starts the query, restarts the query after a failure, and gives up after a persistent failure."""

from collections.abc import Callable
from typing import Protocol

import psycopg
import structlog

from onefold.error_codes import Code, CodedError
from onefold.postgres import NoConnect, NoLogin
from onefold.processor.core.errors import Refused, Retriable, Unauthenticated
from onefold.spark_sink.errors import ErrorReaction, sentence, verdict

log = structlog.get_logger()

_HEALTHY_S = 30.0  # after this time in seconds, a running query is healthy, with or without data
_AUDIT_EVERY_S = 5.0  # one small query; the detection delay for a restored backup while the topics are idle
_SHORTEST_PAUSE_S = 0.2  # between two starts; doubled after each unsuccessful start
_LONGEST_PAUSE_S = 2.0
# After an error of PostgreSQL that may persist, because each start loads the server, and reads the batch from Kafka again.
_LONGEST_UNKNOWN_PAUSE_S = 60.0


class SupervisedQuery(Protocol):
    """The interface of a supervised query."""

    @property
    def name(self) -> str:
        """The pipeline."""

    @property
    def landed(self) -> int:
        """The number of offsets written since the last start."""

    def start(self) -> None:
        """Start from the positions in Postgres. Raises Retriable, Refused or Misconfigured."""

    def failure(self) -> BaseException | None:
        """The error that ended the query. None: the query is healthy."""

    def displaced(self) -> BaseException | None:
        """The error if a position in Postgres is below the written offsets, else None. Raises psycopg.Error."""

    def stop(self) -> None:
        """End the query."""


class QuerySupervisor:
    """Starts a query, and restarts the query after each failure, until the failures have persisted for `patience_s`."""

    def __init__(
        self,
        query: SupervisedQuery,
        patience_s: float,
        clock: Callable[[], float],
        lacks: Callable[[], str] = lambda: "",
    ) -> None:
        """Initialize without starting the query.

        Args:
            clock: monotonic seconds.
            lacks: called before each start. Returns one sentence about the missing rights in PostgreSQL, or "". Raises
                psycopg.Error.
        """
        self.query = query
        self.trouble: str | None = None
        self.running = False
        self._patience_s = patience_s
        self._clock = clock
        self._lacks = lacks
        self._has_run = False
        self._started_at = 0.0
        self._trouble_since = 0.0
        self._pause_s = _SHORTEST_PAUSE_S
        self._not_before = 0.0
        self._audit_at = 0.0

    def tick(self) -> None:
        """Check the query, and start the query if necessary.

        Raises:
            Refused: the query must not run.
            Retriable: the failures have persisted for `patience_s`.
        """
        now = self._clock()
        failure = self.query.failure() or self._audit(now)
        if isinstance(failure, Refused):
            raise failure
        # also after another failure in the meantime: a query with progress is not in trouble
        if self.healthy:
            self.trouble, self._pause_s = None, _SHORTEST_PAUSE_S
        if failure is not None and self.running:
            self._note(failure, now)
        # A displaced query still runs and has no failure. The condition therefore does not depend on a failure.
        if not self.running and now >= self._not_before:
            self._start(now)

    @property
    def healthy(self) -> bool:
        """Whether the query has written offsets since the last start, or has run for longer than `_HEALTHY_S`."""
        return self.running and bool(self.query.landed or self._clock() - self._started_at > _HEALTHY_S)

    def _audit(self, now: float) -> BaseException | None:
        """Check at intervals whether Postgres still has the written offsets. Ignore an outage, which the next batch detects."""
        if not self.running or now < self._audit_at:
            return None
        self._audit_at = now + _AUDIT_EVERY_S
        try:
            return self.query.displaced()
        except psycopg.Error:
            return None

    def _start(self, now: float) -> None:
        self.running = False
        self._check_rights()
        try:
            self.query.start()
        except Retriable as error:
            if isinstance(error, Unauthenticated) and not self._has_run:
                raise Refused(error.code, str(error)) from error
            self._note(error, now)
        else:
            self.running = self._has_run = True
            self._started_at = self._clock()
            log.info(f"{self.query.name}: writing from the positions in Postgres")

    def _check_rights(self) -> None:
        """Raise `Refused` if a right is missing. After other errors of PostgreSQL, the start reports the error."""
        try:
            lacks = self._lacks()
        except NoConnect as error:
            raise Refused(error.code, str(error)) from error
        except psycopg.Error as error:
            if isinstance(error, NoLogin) and not self._has_run:
                raise Refused(error.code, str(error)) from error
            return
        if lacks:
            raise Refused(Code.POSTGRES_RIGHT, lacks)

    def _note(self, failure: BaseException, now: float) -> None:
        """Record the failure, log each new reason once, and raise `Retriable` if the trouble has persisted for `patience_s`."""
        self.running = False
        reason = sentence(failure)
        if self.trouble is None:
            self._trouble_since = now
        if reason != self.trouble:
            unexpected = None if isinstance(failure, CodedError | OSError) else failure
            code = {"code": str(failure.code)} if isinstance(failure, CodedError) else {}
            log.warning(f"{self.query.name}: {reason}; starting again from Postgres", **code)
            log.debug(f"{self.query.name}: the whole story", exc_info=unexpected)
        self.trouble = reason
        self._not_before = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _longest_pause_s(failure))
        if now - self._trouble_since > self._patience_s:
            raise Retriable(Code.GAVE_UP, f"{self.query.name}: gave up after {self._patience_s:.0f} s: {reason}")


def _longest_pause_s(failure: BaseException) -> float:
    """The longest pause between two starts after `failure`, depending on the cause."""
    cause = failure.__cause__ if isinstance(failure, Retriable) else failure
    known = not isinstance(cause, psycopg.Error) or verdict(cause) is ErrorReaction.RETRY
    return _LONGEST_PAUSE_S if known else _LONGEST_UNKNOWN_PAUSE_S
