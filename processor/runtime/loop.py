"""The life of a task: all control flow, and the reaction to each kind of error.

The life is a generator, so its driver controls the time: a thread in production, a seeded scheduler in a simulation.
"""

import contextlib
from collections.abc import Callable, Iterator
from enum import StrEnum

import structlog

from onefold.processor.core.errors import Abortable, Corrupted, Fenced, ProcessorError, Refused, Retriable, TooMuch
from onefold.processor.runtime.backoff import backoff_s
from onefold.processor.runtime.changelog import TaskProgress
from onefold.processor.runtime.state_manager import StateLocation
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.task_metrics import Figures
from onefold.processor.runtime.thread import LifeThread

log = structlog.get_logger()

# First and longest wait before a task is reopened. The longest wait is much shorter than a session timeout.
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.2, 5.0


# Seconds between two reports of a restore.
_REPORT_S = 0.1


class Phase(StrEnum):
    """The phase of a task."""

    RESTORING = "restoring"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPED = "stopped"


class _Stopped(Exception):
    """Raised to end a restore, because the task has to stop."""


class TaskLoop:
    """Runs one task until it is stopped, loses its partition, or may not go on.

    Attributes:
        phase, detail: the present phase, and the reason or progress.
        turned_at: the time of the last step, in seconds of the clock, for the watchdog.
        moved_at: the time of the last progress, or the last time without pending work. A cycle alone is no progress.
        caught_up: whether all records from before the task's opening are processed.
        score, lag, kept: those of the task. `kept` is None before the first opening.
        thread: drives the loop, once started.

    Args:
        make: makes the task, given the function to call while a long restore makes progress.
        clock: monotonic seconds.
        figures: the metrics of the task.
    """

    def __init__(
        self,
        partition: int,
        make: Callable[[Callable[[], None]], Task],
        *,
        clock: Callable[[], float],
        figures: Figures | None = None,
    ) -> None:
        self.partition = partition
        self.phase = Phase.RESTORING
        self.detail = ""
        self.offsets_next: dict[str, int] = {}
        self.caught_up = False
        self.score: tuple[int, int] | None = None
        self.lag: int | None = None
        self.kept: StateLocation | None = None
        self.fenced = False
        self.failure: BaseException | None = None
        self._clock = clock
        self.turned_at = self.moved_at = clock()
        self._figures = figures or Figures()
        self._told = TaskProgress()
        self._make = make
        self._restored = 0
        self._aborts = 0
        self._failures = 0
        self._stopping = False
        self.thread = LifeThread(self.life, f"task-{partition}")

    def stop(self) -> None:
        """Request the end of the loop after the current transaction, without further waits."""
        self._stopping = True
        self.thread.wake()

    def life(self) -> Iterator[float]:
        """Run from the first restore to the end. Yields the seconds to wait before the next step; 0 after most cycles."""
        while not self._stopping:
            try:
                yield from self._live()
                return
            except (Retriable, Corrupted, Abortable) as error:
                self._failures += 1
                wait_s = backoff_s(BACKOFF_FIRST_S, BACKOFF_MAX_S, self._failures)
                self._enter(Phase.WAITING, str(error))
                self._figures.started_over()
                about = {"reason": str(error), "code": str(error.code), "wait_s": wait_s}
                log.warning("task starts over", partition=self.partition, **about)
            except Fenced as error:
                self.fenced = True
                self._enter(Phase.STOPPED, str(error))
                log.warning("task was taken over", partition=self.partition, reason=str(error), code=str(error.code))
                return
            except _Stopped:
                return
            except GeneratorExit:
                raise  # the driver drops the loop, as kill -9 does: nothing more may happen
            except BaseException as error:  # noqa: BLE001 - raised again by `TaskPool.check`
                self.failure = error
                self._enter(Phase.STOPPED, str(error))
                return
            yield wait_s
            self._beat()

    def _live(self) -> Iterator[float]:
        """Open the task, and run its cycles until a stop is requested."""
        self._enter(Phase.RESTORING, "")
        self.caught_up = False
        self._restored = 0
        task = self._make(self._restoring)
        try:
            task.open()
            self._told, self.kept = task.progress, task.kept
            self._enter(Phase.RUNNING, "")
            kept, why = task.kept
            log.info(
                "task runs",
                partition=self.partition,
                keys=len(task.store),
                kept=f"{kept} ({why})",
                next=task.progress.offsets_next,
            )
            while not self._stopping:
                yield self._turn(task)
        except GeneratorExit:
            raise
        except (Retriable, Corrupted, Refused, _Stopped):
            # No record causes these errors, so the next owner needs no isolation. If the clean end cannot be written, the next
            # owner isolates all the same.
            with contextlib.suppress(ProcessorError):
                task.close()
            raise
        except BaseException:
            # A record may be the cause, so the next owner isolates as after a crash.
            task.abandon()
            raise
        task.close()

    def _turn(self, task: Task) -> float:
        """Run one cycle. Returns the seconds to wait before the next cycle."""
        try:
            task.turn()
        except Abortable as error:
            # The records of the aborted transaction are still in the task's buffer, for the next cycle.
            log.warning("transaction aborted", partition=self.partition, reason=str(error), code=str(error.code))
            self._aborts += 1
            self._figures.aborted()
            self._enter(Phase.WAITING, str(error))
            # A cluster that rejects a transaction as too large is available. The next try is smaller, and can be soon.
            return backoff_s(BACKOFF_FIRST_S, BACKOFF_MAX_S, 1 if isinstance(error, TooMuch) else self._aborts)
        if self._aborts:
            self._aborts = 0
            self._enter(Phase.RUNNING, "")
        self._failures = 0
        self.offsets_next = task.progress.offsets_next
        self.caught_up = task.caught_up()
        self.score, self.kept = task.decider.score, task.kept
        self._beat()
        self._tell(task)
        return 0.0

    def _tell(self, task: Task) -> None:
        before, self._told, self.lag = self._told, task.progress, task.lag
        self._figures.turned(before, self._told, task.done)
        if self.lag == 0 or self._told.transactions != before.transactions:
            # For readers of published topics, an unpublished decision is no progress.
            waits_since = task.decider.unpublished_since
            self.moved_at = self.turned_at if waits_since is None else min(self.turned_at, waits_since)

    def _beat(self) -> None:
        self.turned_at = self._clock()

    def _restoring(self) -> None:
        """Note a record that a restore has read, from the changelog or the decision log, and report progress at intervals.

        Raises `_Stopped` when the loop has to stop: a restore leaves nothing to finish.
        """
        if self._stopping and self.phase is Phase.RESTORING:
            raise _Stopped
        self._restored += 1
        if self._clock() - self.turned_at > _REPORT_S:
            self.detail = f"task {self.partition} has read {self._restored:,} records that it restores from"
            self._beat()
            self.moved_at = self.turned_at

    def _enter(self, phase: Phase, detail: str) -> None:
        self.phase, self.detail = phase, detail
        self._beat()
