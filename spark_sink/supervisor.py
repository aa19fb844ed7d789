"""A query supervisor: starts a query, starts it again when it has ended, and gives up when that lasts too long."""

from collections.abc import Callable
from typing import Protocol

import psycopg
import structlog

from onefold.error_codes import Code, CodedError
from onefold.postgres import NoConnect, NoLogin
from onefold.processor.core.errors import Refused, Retriable, Unauthenticated
from onefold.spark_sink.errors import Verdict, sentence, verdict

log = structlog.get_logger()

_HEALTHY_S = 30.0  # a query that has been going for this long has got over its trouble, with or without data
_AUDIT_EVERY_S = 5.0  # one small query; a restored backup is noticed this late while the topics are quiet
_SHORTEST_PAUSE_S = 0.2  # between two starts; doubled with each start that does not help
_LONGEST_PAUSE_S = 2.0
# Where PostgreSQL gives an error that is not known to pass: each start costs the server, and reads the batch from Kafka again.
_LONGEST_UNKNOWN_PAUSE_S = 60.0


class Query(Protocol):
    """What a supervisor needs of a query."""

    @property
    def name(self) -> str:
        """The domain."""

    @property
    def landed(self) -> int:
        """How many offsets it has landed since its last start."""

    def start(self) -> None:
        """Begin where Postgres says. Raises Retriable, Refused or Misconfigured."""

    def failure(self) -> BaseException | None:
        """Why nothing further lands; None while it is healthy."""

    def displaced(self) -> BaseException | None:
        """Why it must go back: Postgres holds less than it has landed. Raises psycopg.Error."""

    def stop(self) -> None:
        """End it."""


class QuerySupervisor:
    """Starts a query, and starts it again when it ended, until its trouble has lasted too long."""

    def __init__(
        self, query: Query, patience_s: float, clock: Callable[[], float], lacks: Callable[[], str] = lambda: ""
    ) -> None:
        """Begin with no query.

        Args:
            clock: gives seconds that only grow.
            lacks: names the missing rights in PostgreSQL before each start, in one sentence, or ""; raises psycopg.Error.
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
        """Raises Refused at once, and Retriable when patience is over."""
        now = self._clock()
        failure = self.query.failure() or self._audit(now)
        if isinstance(failure, Refused):
            raise failure
        # even when it has failed again meanwhile: a sink that makes progress is not in trouble
        if self.healthy:
            self.trouble, self._pause_s = None, _SHORTEST_PAUSE_S
        if failure is not None and self.running:
            self._note(failure, now)
        # not only after a failure of the query: one that was displaced is going still, and would say so for ever
        if not self.running and now >= self._not_before:
            self._start(now)

    @property
    def healthy(self) -> bool:
        """Whether the query has landed something since its last start, or has run for long."""
        return self.running and bool(self.query.landed or self._clock() - self._started_at > _HEALTHY_S)

    def _audit(self, now: float) -> BaseException | None:
        """Look now and then whether Postgres still holds what was landed. What it does not answer, a batch will notice."""
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
        """Raises Refused. What PostgreSQL does not answer, the start reports."""
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
        """Remember why, say it once, and give up when it has been so for too long."""
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
        # a power of the starts would overflow one day
        self._pause_s = min(2 * self._pause_s, _longest_pause_s(failure))
        if now - self._trouble_since > self._patience_s:
            raise Retriable(Code.GAVE_UP, f"{self.query.name}: gave up after {self._patience_s:.0f} s: {reason}")


def _longest_pause_s(failure: BaseException) -> float:
    """Between two starts, after what `failure` or its cause is."""
    cause = failure.__cause__ if isinstance(failure, Retriable) else failure
    known = not isinstance(cause, psycopg.Error) or verdict(cause) is Verdict.RETRY
    return _LONGEST_PAUSE_S if known else _LONGEST_UNKNOWN_PAUSE_S
