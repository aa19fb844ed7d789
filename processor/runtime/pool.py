"""The tasks of this instance: the pool starts an assigned task and stops a revoked task."""

from collections.abc import Callable, Iterable
from functools import partial

import structlog

from onefold.processor.runtime.loop import Phase, TaskLoop
from onefold.processor.runtime.state_manager import told_of
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.task_metrics import Figures

log = structlog.get_logger()

# A task ends after the current transaction. The pool abandons a task that hangs longer; the successor fences the task.
STOP_TIMEOUT_S = 10.0
# A timeout, or an instance with a stale view of the group, fences a task that is still assigned here. An immediate restart
# could fence the other instance in turn. After this pause the group has usually informed one of the two instances.
FENCED_PAUSE_S = 2.0


class TaskPool:
    """Task loops by partition.

    Args:
        make: makes the task of a partition, given the function to call while a long restore makes progress.
        clock: monotonic seconds.
        figures: the metrics of the tasks.
    """

    def __init__(
        self,
        make: Callable[[int, Callable[[], None]], Task],
        *,
        clock: Callable[[], float],
        figures: Figures | None = None,
    ) -> None:
        self._make = make
        self._clock = clock
        self._figures = figures
        self._loops: dict[int, TaskLoop] = {}
        self._fenced_at: dict[int, float] = {}

    def start(self, partitions: Iterable[int]) -> None:
        """Start the tasks of the given partitions. Running tasks continue."""
        for partition in partitions:
            if partition not in self._loops:
                make = partial(self._make, partition)
                loop = TaskLoop(partition, make, clock=self._clock, figures=self._figures)
                self._loops[partition] = loop
                loop.thread.start()

    def stop(self, partitions: Iterable[int]) -> None:
        """Stop the tasks of the given partitions, concurrently."""
        loops = [self._loops.pop(partition) for partition in list(partitions) if partition in self._loops]
        for loop in loops:
            loop.stop()
        deadline = self._clock() + STOP_TIMEOUT_S
        for loop in loops:
            self._fenced_at.pop(loop.partition, None)
            if not loop.thread.join(max(0.0, deadline - self._clock())):
                log.warning("task did not end in time; its successor fences it", partition=loop.partition)

    def stop_all(self) -> None:
        """Stop all tasks."""
        self.stop(list(self._loops))

    def check(self) -> None:
        """Restart fenced tasks after a pause. Raises the error of a task that cannot continue."""
        now = self._clock()
        for partition, loop in list(self._loops.items()):
            if loop.failure is not None:
                raise loop.failure
            if loop.fenced and now - self._fenced_at.setdefault(partition, now) > FENCED_PAUSE_S:
                del self._loops[partition], self._fenced_at[partition]
                self.start([partition])
                # Two tasks that fence each other repeatedly make no progress.
                self._loops[partition].moved_at = loop.moved_at

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self._loops)

    def lag(self) -> int:
        """The number of input offsets that are not processed, as last read by the tasks."""
        return sum(loop.lag or 0 for loop in self._loops.values())

    def quietest(self) -> tuple[float, str]:
        """The time of the least recent progress of a task, in seconds of the clock, and the status of that task.

        A task without pending work counts as progress. Without tasks, the time is now.
        """
        if not self._loops:
            return self._clock(), ""
        loop = min(self._loops.values(), key=lambda loop: loop.moved_at)
        waits = f", {loop.lag:,} offsets wait" if loop.lag else ""
        return loop.moved_at, f"task {loop.partition} is {loop.phase}{waits}{f': {loop.detail}' if loop.detail else ''}"

    def caught_up(self) -> list[int]:
        """The partitions of running tasks that have processed all records from before the opening."""
        return [partition for partition, loop in self._loops.items() if loop.phase == Phase.RUNNING and loop.caught_up]

    def silent_for_s(self) -> float:
        """The longest time, in seconds, since the last step of a task that is not stopped."""
        now = self._clock()
        return max((now - loop.turned_at for loop in self._loops.values() if loop.phase != Phase.STOPPED), default=0.0)

    def offsets_next(self) -> dict[tuple[str, int], int]:
        """The next offset to read by (topic, partition), as of each task's last cycle."""
        return {
            (topic, partition): offset
            for partition, loop in list(self._loops.items())
            for topic, offset in loop.offsets_next.items()
        }

    def summary(self) -> tuple[Phase, str]:
        """The least healthy phase of all tasks, and its detail."""
        phases = [(loop.phase, loop.detail, loop.partition) for loop in self._loops.values()]
        for phase in (Phase.STOPPED, Phase.WAITING, Phase.RESTORING):
            for found, detail, partition in phases:
                if found == phase:
                    reported = Phase.WAITING if phase == Phase.STOPPED else phase
                    return reported, detail or f"task {partition} is {phase}"
        scores = [loop.score for loop in self._loops.values() if loop.score is not None]
        won, decided = sum(won for won, _ in scores), sum(decided for _, decided in scores)
        kept = told_of([loop.kept for loop in self._loops.values() if loop.kept is not None])
        told = (f"{len(phases)} tasks", f"{won:,} of {decided:,} accepted proposals" if scores else "", kept)
        return Phase.RUNNING, ", ".join(filter(None, told))
