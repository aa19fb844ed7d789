"""The life of a task in its own thread: what happens next after each kind of error. All control flow is here."""

import contextlib
import threading
import time
from collections.abc import Callable
from enum import StrEnum

import structlog

from onefold.processor.core.errors import Abortable, Corrupted, Fenced, ProcessorError, Refused, Retriable, TooMuch
from onefold.processor.runtime.backoff import backoff_s
from onefold.processor.runtime.task import Task

log = structlog.get_logger()

# First and longest wait before a task is opened again. The longest is short beside every session timeout.
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.2, 5.0


# Records between two words about a restore; about a tenth of a second of reading.
_SAY_EVERY = 10_000


class Phase(StrEnum):
    """Where a task is in its life."""

    RESTORING = "restoring"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPED = "stopped"


class TaskLoop:
    """Runs one task until it is stopped, loses its partition, or may not go on.

    `phase` and `detail` say where it is; `turned_at` (monotonic seconds) when it last made a step, for the watchdog.
    """

    def __init__(self, partition: int, make: Callable[[Callable[[], None]], Task]) -> None:
        self.partition = partition
        self.phase = Phase.RESTORING
        self.detail = ""
        self.turned_at = time.monotonic()
        self.offsets_next: dict[str, int] = {}
        self.fenced = False
        self.failure: BaseException | None = None
        self._make = make
        self._restored = 0
        self._aborts = 0
        self._failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"task-{partition}", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end after the transaction in hand."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False when it has not ended in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._live():
                    return
            except (Retriable, Corrupted, Abortable) as error:
                self._failures += 1
                wait_s = backoff_s(BACKOFF_FIRST_S, BACKOFF_MAX_S, self._failures)
                self._enter(Phase.WAITING, str(error))
                log.warning("task starts over", partition=self.partition, reason=str(error), wait_s=wait_s)
            except Fenced as error:
                self.fenced = True
                self._enter(Phase.STOPPED, str(error))
                log.warning("task was taken over", partition=self.partition, reason=str(error))
                return
            except BaseException as error:  # noqa: BLE001 - a thread's error is raised again in the main thread
                self.failure = error
                self._enter(Phase.STOPPED, str(error))
                return
            self._idle(wait_s)

    def _live(self) -> bool:
        """Open the task and turn it. True when it was asked to stop."""
        self._enter(Phase.RESTORING, "")
        self._restored = 0
        task = self._make(self._restoring)
        try:
            task.open()
            self._enter(Phase.RUNNING, "")
            log.info("task runs", partition=self.partition, keys=len(task.store), next=task.progress.offsets_next)
            while not self._stop.is_set():
                self._turn(task)
        except (Retriable, Corrupted, Refused):
            # A known trouble is no record's fault: the next owner need not be careful. If that cannot be said, it will be.
            with contextlib.suppress(ProcessorError):
                task.retreat()
            raise
        except BaseException:
            # Whatever it was, the next owner should be as careful as after a crash.
            task.abandon()
            raise
        task.close()
        return True

    def _turn(self, task: Task) -> None:
        try:
            task.turn()
        except Abortable as error:
            # The session has aborted, reinitialised its producer and rewound to the progress: the same records come again.
            log.warning("transaction aborted", partition=self.partition, reason=str(error))
            self._aborts += 1
            self._enter(Phase.WAITING, str(error))
            # The cluster is there when it says that this was too much: the next try is a smaller one, and can be soon.
            self._idle(backoff_s(BACKOFF_FIRST_S, BACKOFF_MAX_S, 1 if isinstance(error, TooMuch) else self._aborts))
            return
        if self._aborts:
            self._aborts = 0
            self._enter(Phase.RUNNING, "")
        self._failures = 0
        self.offsets_next = task.progress.offsets_next
        self._beat()

    def _beat(self) -> None:
        self.turned_at = time.monotonic()

    def _restoring(self) -> None:
        """A changelog record was read. Said now and then, so that a long restore is seen to go on."""
        self._restored += 1
        if self._restored % _SAY_EVERY == 0:
            self.detail = f"task {self.partition} has read {self._restored} changelog records"
            self._beat()

    def _idle(self, seconds: float) -> None:
        self._stop.wait(seconds)
        self._beat()

    def _enter(self, phase: Phase, detail: str) -> None:
        self.phase, self.detail = phase, detail
        self._beat()
