"""The Spark cluster of the sink. Checks for executors, and starts a new session after the cluster has lost the application."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.errors import sentence
from onefold.spark_sink.spark.options import hosts, is_local
from onefold.telemetry import EXECUTORS, Telemetry

log = structlog.get_logger()

# A cluster normally starts or replaces an executor within seconds.
NONE_FOR_S = 30.0
_LOOK_EVERY_S = 2.0
_MASTER_ANSWERS_S = 2.0


class Cluster:
    """The Spark session of the sink, and the session's executors.

    A standalone master restarted without its state has lost the application, and makes the workers end the executors. Only a
    new session gets new executors.

    Args:
        start: starts a session. Raises Misconfigured or Retriable.
        master: the session's master; a local master until `spark-submit` provides the address.
        patience_s: the maximum time in seconds without executors.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        start: Callable[[], SparkSession],
        master: str,
        telemetry: Telemetry,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin = start
        self._master = master
        self._telemetry = telemetry
        self._patience_s = patience_s
        self._clock = clock
        self._session: SparkSession | None = None
        self._had_at = self._look_at = clock()
        self._has_started = self._had_any = False
        self._why = ""

    def session(self) -> SparkSession:
        """Return the session. Raises Retriable without a session."""
        if self._session is None:
            raise Retriable(Code.NO_EXECUTORS, self._why or f"the Spark master {self._master} has not answered yet")
        return self._session

    def trouble(self) -> str:
        """Return the reason why no task can run. "": executors exist, or may still start.

        Raises:
            Misconfigured: Spark does not start.
            Retriable: the sink has had no executors for `patience_s`.
        """
        now = self._clock()
        if now < self._look_at:
            return self._why
        self._look_at = now + _LOOK_EVERY_S
        why = self._start() if self._session is None else self._without_executors(self._session, now)
        if why != self._why:
            (log.warning if why else log.info)(why or "Spark has executors again", code=str(Code.NO_EXECUTORS))
            self._telemetry.faulty("Spark", why)
            self._why = why
        if why and now - self._had_at > self._patience_s:
            raise Retriable(Code.GAVE_UP, f"gave up after {self._patience_s:.0f} s: {why}")
        return why

    def stop(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.stop()

    def _start(self) -> str:
        if silent := self._silent_master():
            return silent
        try:
            session = self._begin()
        except Retriable as error:
            return sentence(error)
        self._session, self._master = session, session.sparkContext.master or self._master
        now = self._clock()
        if not self._has_started:  # the time without executors starts with the first session
            self._had_at = now
        self._has_started, self._had_any = True, False
        return ""

    def _without_executors(self, session: SparkSession, now: float) -> str:
        executors = self._executors(session)
        self._telemetry.put(EXECUTORS, executors)
        with suppress(Py4JError):  # the driver's JVM has ended; a query reports the error
            if executors or _idles(session):
                self._had_at, self._had_any = now, True
        if now - self._had_at < NONE_FOR_S:
            return ""
        silent = self._silent_master()
        # A session without any executors so far may have slow workers. A new session would wait as long again.
        if hosts(self._master) and not silent and self._had_any:
            with suppress(PySparkException, Py4JError):  # the session is useless in any case
                session.stop()
            self._session = None
            silent = self._start()
        return silent or f"Spark has had no executors at {self._master} for {NONE_FOR_S:.0f} s"

    def _executors(self, session: SparkSession) -> int:
        if is_local(self._master):
            return 1
        try:
            context = session.sparkContext._jsc.sc()
            return (
                0 if context.isStopped() else len(context.statusTracker().getExecutorInfos()) - 1
            )  # one is the driver
        except Py4JError:
            return 0

    def _silent_master(self) -> str:
        places = hosts(self._master)
        for host, port in places:
            with suppress(OSError, UnicodeError), socket.create_connection((host, port), _MASTER_ANSWERS_S):
                return ""
        return f"the Spark master {self._master} does not answer" if places else ""


def _idles(session: SparkSession) -> bool:
    """Whether Spark may have released its executors because no job runs (dynamic allocation)."""
    context = session.sparkContext
    dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    return dynamic and not context.statusTracker().getActiveJobsIds()
