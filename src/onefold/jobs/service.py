"""The workers of a pipeline as a process: one for each queue, until SIGTERM or SIGINT."""

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
from onefold.jobs.worker import Limits, Outcome, Worker
from onefold.pauses import Pausable
from onefold.pipelines import Pipeline
from onefold.postgres import NoLogin
from onefold.process import ServiceProcess
from onefold.processor.core.errors import Refused, Retriable, Unauthenticated
from onefold.processor.io.admin import connect
from onefold.replication import AS_BROKERS, Replication
from onefold.telemetry import JOB_S, JOBS, SILENT, WORKER_WAITS, Telemetry

log = structlog.get_logger()

# How long a worker waits for a message before it looks whether it was asked to stop.
_ROUND_S = 0.5
# Between two tries at a server that does not answer, or a topic that is not there yet.
_PAUSE_S = 1.0
# The main thread's rhythm.
_TELL_S = 0.3
# How often a worker without a message asks whether any job waits, if anybody listens.
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
    """Do the jobs of a pipeline until SIGTERM or SIGINT, unless it is paused. Returns the exit code.

    A job at hand is handed over at its next checkpoint. A server that is away is waited for.

    Args:
        instance: a name that survives a restart; unique among the workers of the pipeline.
        prepare: makes the engine's tables, when they are missing; raises psycopg.Error while the database is away, and
            `Refused` when a person has to look.
        status_file: kept fresh, see `onefold.status_file`.
        session_timeout_ms: a killed worker's jobs go to the others after this time; None: the default for so many brokers.
        replication: of the topics that it makes.
        step: called at each step of each worker.
        telemetry: told what it does, and whether it gets on.
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
                    while desk.thread.is_alive():  # a job may be long until its next checkpoint
                        process.status.write("running", desk.summary())
                        desk.thread.join(_TELL_S)
            _look(desks)
    return process.exit_code


def _look(desks: list["Desk"]) -> tuple[str, str]:
    """The state of the process and a detail. Raises the error that a worker has ended with."""
    for desk in desks:
        if desk.error is not None:
            raise desk.error
        desk.tell()
    if waiting := [desk for desk in desks if desk.waits_for]:
        return "waiting", waiting[0].waits_for
    return "running", "; ".join(desk.summary() for desk in desks) or "it has no jobs"


class Desk:
    """A worker at its queue, in a thread.

    Args:
        stop: set when the worker has to end.

    Attributes:
        thread: of the worker, not started yet.
        waits_for: what it cannot go on without, or "".
        error: what it ended with by itself: a `Refused`, or a bug.
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
        self._outcomes: Counter[Outcome] = Counter()
        self.thread = threading.Thread(target=self._live, name=queue, daemon=True)
        self.waits_for, self._began = f"{queue}: it begins", False
        self.error: BaseException | None = None

    def _live(self) -> None:
        try:
            while not self._stop.is_set():
                self._spell()
        except BaseException as error:  # noqa: BLE001 - it is told by the main thread, which ends the process
            self.error = error

    def summary(self) -> str:
        """What it has done since it was started, in a few words."""
        told = [
            f"{number:,} {outcome.value}"
            for outcome, number in sorted(self._outcomes.items(), key=lambda one: one[0].value)
        ]
        return f"{self._queue}: {', '.join(told) or 'nothing to do yet'}"

    def tell(self) -> None:
        """Tell how it is."""
        why = self.waits_for or "jobs are pending, and none gets further: `onefold status` says why"
        self._telemetry.put(WORKER_WAITS, bool(self.waits_for), **self._labels)
        self._telemetry.stands(self._pipeline.name, self._queue, self._moved_at, why)

    def _came_to(self, outcome: Outcome | None, pending: PostgresPending) -> None:
        """After a message, or after a while without one."""
        now = time.monotonic()
        if outcome is not None:
            self._outcomes[outcome] += 1
            self._telemetry.add(JOBS, 1, outcome=outcome.name.lower(), **self._labels)
            self._telemetry.took(JOB_S, now - self._received_at, **self._labels)
        if outcome is Outcome.DONE:
            self._moved_at = now
        elif self._telemetry.listens and now - self._looked_at > _LOOK_EVERY_S:
            self._looked_at = now
            self._moved_at = max(self._moved_at, now - pending.quiet_s(self._queue, self._limits.timeout_s))

    def _note(self, step: str) -> None:
        """A message came with the first step, and each checkpoint is a move."""
        if step == "received":
            self._received_at = time.monotonic()
        elif step == "checkpointed":
            self._moved_at = time.monotonic()
        self._step(step)

    def _spell(self) -> None:
        """Work until asked to stop, or until a server is away: then everything is opened anew."""
        with ExitStack() as open_now:
            try:
                contract = contract_of(self._pipeline, self._queue)
                declared(self._pipeline, self._queue)  # what is wrong with it no server can mend: it is not waited for
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
                    if outcome is Outcome.FAILED:
                        # What it holds may be broken, as a connection that was cut: the next try has a new one.
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
