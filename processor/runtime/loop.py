"""The life of a task: what happens next after each kind of error. All control flow is here.

It is a generator, so that whoever drives it has the time in hand: its thread in production, a scheduler with a seed in a
simulation.
"""

import contextlib
from collections.abc import Callable, Iterator
from enum import StrEnum

import structlog

from onefold.processor.core.errors import Abortable, Corrupted, Fenced, ProcessorError, Refused, Retriable, TooMuch
from onefold.processor.runtime.backoff import backoff_s
from onefold.processor.runtime.changelog import Progress
from onefold.processor.runtime.figures import Figures
from onefold.processor.runtime.keeping import Standing
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.thread import LifeThread

log = structlog.get_logger()

# First and longest wait before a task is opened again. The longest is short beside every session timeout.
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.2, 5.0


# Seconds between two reports of a restore.
_REPORT_S = 0.1


class Phase(StrEnum):
    """Where a task is in its life."""

    RESTORING = "restoring"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPED = "stopped"


class _Stopped(Exception):
    """A restore that is given up, because the task was asked to end."""


class TaskLoop:
    """Runs one task until it is stopped, loses its partition, or may not go on.

    `phase` and `detail` say where it is; `turned_at` (seconds of the clock) when it last made a step, for the watchdog;
    `caught_up` whether it has folded all that was there when it was opened; `score`, `lag` and `kept` are the task's. `kept` is
    None until it was opened.
    `thread` drives it, when it is started.
    `moved_at` is when it last came further, or had nothing to do: a turn alone is no sign of that.

    Args:
        make: makes the task; it gets a function to call while a long restore goes on.
        clock: monotonic seconds.
        figures: told what it does.
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
        self.kept: Standing | None = None
        self.fenced = False
        self.failure: BaseException | None = None
        self._clock = clock
        self.turned_at = self.moved_at = clock()
        self._figures = figures or Figures()
        self._told = Progress()
        self._make = make
        self._restored = 0
        self._aborts = 0
        self._failures = 0
        self._stopping = False
        self.thread = LifeThread(self.life, f"task-{partition}")

    def stop(self) -> None:
        """Ask it to end after the transaction in hand, and not to wait any more."""
        self._stopping = True
        self.thread.wake()

    def life(self) -> Iterator[float]:
        """From the first restore to the end. It gives how many seconds to wait before it goes on: none after most turns."""
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
                raise  # whoever drives it has let go of it, as kill -9 does: nothing more may happen
            except BaseException as error:  # noqa: BLE001 - raised again by whoever looks after the loops
                self.failure = error
                self._enter(Phase.STOPPED, str(error))
                return
            yield wait_s
            self._beat()

    def _live(self) -> Iterator[float]:
        """Open the task and turn it, until it is asked to stop."""
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
            # A known trouble is no record's fault: the next owner need not be careful. If that cannot be said, it will be.
            with contextlib.suppress(ProcessorError):
                task.close()
            raise
        except BaseException:
            # Whatever it was, the next owner should be as careful as after a crash.
            task.abandon()
            raise
        task.close()

    def _turn(self, task: Task) -> float:
        """One cycle. How many seconds to wait before the next."""
        try:
            task.turn()
        except Abortable as error:
            # The transaction is aborted, and its records are in the task's buffer: they come again.
            log.warning("transaction aborted", partition=self.partition, reason=str(error), code=str(error.code))
            self._aborts += 1
            self._figures.aborted()
            self._enter(Phase.WAITING, str(error))
            # The cluster is there when it says that this was too much: the next try is a smaller one, and can be soon.
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
            # Where others read what is published, nothing has moved before it is.
            waits_since = task.decider.unpublished_since
            self.moved_at = self.turned_at if waits_since is None else min(self.turned_at, waits_since)

    def _beat(self) -> None:
        self.turned_at = self._clock()

    def _restoring(self) -> None:
        """More was read, of the changelog or the decision log. Reported now and then, so that a long restore is seen to go on.
        Raises `_Stopped` when it is to end: nothing has begun.
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
