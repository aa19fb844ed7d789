"""The process with the workers of a pipeline, one worker for each queue, until SIGTERM or SIGINT."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import psycopg
import structlog

from onefold.config.errors import first_line
from onefold.error_codes import Code, CodedError
from onefold.jobs import topics
from onefold.jobs.context import Context
from onefold.jobs.loading import contract_of, declared, effect_of
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Effect, Queue
from onefold.jobs.queue import KafkaQueue
from onefold.jobs.worker import Limits, MessageOutcome, Worker
from onefold.pauses import Pausable
from onefold.pipelines import Pipeline
from onefold.postgres import NoLogin
from onefold.process import ServiceProcess
from onefold.processor.core.errors import Refused, Retriable, Unauthenticated
from onefold.processor.io.admin import connect
from onefold.replication import AS_BROKERS, Replication
from onefold.telemetry import JOB_S, JOBS, SILENT, WORKER_WAITS, Telemetry

log = structlog.get_logger()

# The maximum wait for a message before the next check for a stop.
_ROUND_S = 0.5
# The pause between two attempts after an outage of a server, or with a missing topic.
_PAUSE_S = 1.0
# The interval of the main thread's status updates.
_TELL_S = 0.3
# The interval at which an idle worker queries the pending jobs, if telemetry is enabled.
_LOOK_EVERY_S = 5.0


def run(
    pipeline: Pipeline,
    context: Context,
    *,
    instance: str,
    prepare: Callable[[], object],
    status_file: Path | None = None,
    limits: Limits | None = None,
    session_timeout_ms: int | None = None,
    replication: Replication = AS_BROKERS,
    step: Callable[[str], None] = lambda name: None,
    telemetry: Telemetry = SILENT,
) -> int:
    """Do the jobs of a pipeline until SIGTERM or SIGINT, except during a pause of the pipeline. Returns the exit code.

    At a stop, a worker releases the current job at its next checkpoint. Workers wait during an outage of a server.

    Args:
        instance: a name that survives a restart, unique among the workers of the pipeline.
        prepare: creates missing engine tables. Raises psycopg.Error during an outage of the database, and `Refused` if a person
            has to act.
        status_file: updated at intervals; see `onefold.status_file`.
        session_timeout_ms: after this time, other workers get the jobs of a killed worker. None: the default for the number of
            brokers.
        replication: the replication of created topics.
        step: called at each step of each worker.
        telemetry: receives the metrics and the progress.
    """
    with (
        ServiceProcess(status_file) as process,
        closing(Pausable(context.client, pipeline.name, process, telemetry)) as pausable,
    ):
        while not process.stop.is_set():
            if pausable.waits():
                continue
            halt = threading.Event()
            made = partial(Desk, pipeline, context, instance, halt, prepare, limits or Limits(), step)
            desks = [made(queue, telemetry, session_timeout_ms, replication) for queue in pipeline.jobs]
            for desk in desks:
                desk.thread.start()
            try:
                process.watch(partial(_look, desks), _TELL_S, pausable.halts)
            finally:
                halt.set()
                for desk in desks:
                    while desk.thread.is_alive():  # the next checkpoint of a job may be far away
                        process.status.write("running", desk.summary())
                        desk.thread.join(_TELL_S)
            _look(desks)
    return process.exit_code


def _look(desks: list["Desk"]) -> tuple[str, str]:
    """Return the state of the process and a detail. Raises the error of an ended worker."""
    for desk in desks:
        if desk.error is not None:
            raise desk.error
        desk.tell()
    if waiting := [desk for desk in desks if desk.waits_for]:
        return "waiting", waiting[0].waits_for
    return "running", "; ".join(desk.summary() for desk in desks) or "it has no jobs"


class Desk:
    """The thread with the worker of a queue.

    Args:
        stop: set to end the worker.

    Attributes:
        thread: the worker's thread, not yet started.
        waits_for: the reason why the worker is blocked, or "".
        error: the error that ended the worker: a `Refused`, or a bug.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        context: Context,
        instance: str,
        stop: threading.Event,
        prepare: Callable[[], object],
        limits: Limits,
        step: Callable[[str], None],
        queue: str,
        telemetry: Telemetry = SILENT,
        session_timeout_ms: int | None = None,
        replication: Replication = AS_BROKERS,
    ) -> None:
        self._pipeline = pipeline
        self._queue = queue
        self._context = context
        self._instance = instance
        self._stop, self._prepare, self._limits, self._step = stop, prepare, limits, step
        self._telemetry = telemetry
        self._session_timeout_ms = session_timeout_ms
        self._replication = replication
        self._labels = {"domain": pipeline.name, "queue": queue}
        self._received_at = self._moved_at = time.monotonic()
        self._looked_at = 0.0
        self._outcomes: Counter[MessageOutcome] = Counter()
        self.thread = threading.Thread(target=self._live, name=queue, daemon=True)
        self.waits_for, self._began = f"{queue}: it begins", False
        self.error: BaseException | None = None

    def _live(self) -> None:
        try:
            while not self._stop.is_set():
                self._spell()
        except BaseException as error:  # noqa: BLE001 - the main thread raises the error and ends the process
            self.error = error

    def summary(self) -> str:
        """The number of messages by outcome since the start, for the status."""
        told = [
            f"{number:,} {outcome.value}"
            for outcome, number in sorted(self._outcomes.items(), key=lambda one: one[0].value)
        ]
        return f"{self._queue}: {', '.join(told) or 'nothing to do yet'}"

    def tell(self) -> None:
        """Report the progress to the telemetry."""
        why = self.waits_for or "jobs are pending, and none gets further: `onefold status` says why"
        self._telemetry.put(WORKER_WAITS, bool(self.waits_for), **self._labels)
        self._telemetry.stands(self._pipeline.name, self._queue, self._moved_at, why)

    def _came_to(self, outcome: MessageOutcome | None, pending: PostgresPending) -> None:
        """Update the metrics and the progress after a message, or after a wait without a message."""
        now = time.monotonic()
        if outcome is not None:
            self._outcomes[outcome] += 1
            self._telemetry.add(JOBS, 1, outcome=outcome.name.lower(), **self._labels)
            self._telemetry.took(JOB_S, now - self._received_at, **self._labels)
        if outcome is MessageOutcome.DONE:
            self._moved_at = now
        elif self._telemetry.listens and now - self._looked_at > _LOOK_EVERY_S:
            self._looked_at = now
            self._moved_at = max(self._moved_at, now - pending.quiet_s(self._queue, self._limits.timeout_s))

    def _note(self, step: str) -> None:
        """Record the arrival of a message at the first step, and the progress at each checkpoint."""
        if step == "received":
            self._received_at = time.monotonic()
        elif step == "checkpointed":
            self._moved_at = time.monotonic()
        self._step(step)

    def _spell(self) -> None:
        """Work until the stop, or until an outage of a server. The next call opens all connections again."""
        with ExitStack() as open_now:
            try:
                contract = contract_of(self._pipeline, self._queue)
                declared(self._pipeline, self._queue)  # first, because waiting for a server cannot fix the declaration
                self._prepare()
                pending = PostgresPending(self._context.dsn, self._instance, self._pipeline.name)
                open_now.callback(pending.close)
                context = self._context.held_by(pending.still)
                effect = effect_of(self._pipeline, self._queue, context)
                topics.create(connect(context.client), self._queue, self._replication)
                queue = KafkaQueue(
                    self._queue,
                    contract,
                    context.client,
                    self._instance,
                    session_timeout_ms=self._session_timeout_ms,
                    still=pending.still,
                )
                open_now.callback(queue.close)
                worker = self._worker(queue, pending, effect)
                self.waits_for, self._began = "", True
                while not self._stop.is_set():
                    outcome = worker.work(_ROUND_S)
                    self.waits_for = f"{self._queue}: {why}" if (why := queue.waits_for) else ""
                    self._came_to(outcome, pending)
                    if outcome is MessageOutcome.FAILED:
                        # The effect may hold a broken object, for example a closed connection. Create a new effect.
                        effect = effect_of(self._pipeline, self._queue, context)
                        worker = self._worker(queue, pending, effect)
            except (Retriable, psycopg.Error) as error:
                if isinstance(error, Unauthenticated | NoLogin) and not self._began:
                    raise Refused(error.code, str(error)) from error
                first = first_line(error)
                if self.waits_for != f"{self._queue}: {first}":
                    code = error.code if isinstance(error, CodedError) else Code.POSTGRES_SILENT
                    log.warning("waiting", queue=self._queue, reason=first, code=str(code))
                self.waits_for = f"{self._queue}: {first}"
                self._stop.wait(_PAUSE_S)

    def _worker(self, queue: Queue, pending: PostgresPending, effect: Effect) -> Worker:
        return Worker(
            queue,
            pending,
            effect,
            self._limits,
            clock=time.monotonic,
            dice=random.random,  # noqa: S311 - the jitter of a retry is no secret
            step=self._note,
            stopping=self._stop.is_set,
        )
