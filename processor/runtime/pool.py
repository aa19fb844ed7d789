"""The tasks that this instance has now: started when the group gives them, stopped when it takes them away."""

from collections.abc import Callable, Iterable
from functools import partial

import structlog

from onefold.processor.runtime.figures import Figures
from onefold.processor.runtime.keeping import told_of
from onefold.processor.runtime.loop import Phase, TaskLoop
from onefold.processor.runtime.task import Task

log = structlog.get_logger()

# A task ends after the transaction in hand; one that hangs longer is left behind, and fenced by its successor.
STOP_TIMEOUT_S = 10.0
# A fenced task that is still ours was fenced by a timeout, or by somebody with a stale view of the group. Trying again at
# once could fence them in turn; after this time the group has usually told one of us.
FENCED_PAUSE_S = 2.0


class TaskPool:
    """Task loops by partition.

    Args:
        make: makes the task of a partition; it gets the loop's heartbeat.
        clock: monotonic seconds.
        figures: told what the tasks do.
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
        """Begin the tasks of these partitions; those that run already go on."""
        for partition in partitions:
            if partition not in self._loops:
                make = partial(self._make, partition)
                loop = TaskLoop(partition, make, clock=self._clock, figures=self._figures)
                self._loops[partition] = loop
                loop.thread.start()

    def stop(self, partitions: Iterable[int]) -> None:
        """End the tasks of these partitions, side by side."""
        loops = [self._loops.pop(partition) for partition in list(partitions) if partition in self._loops]
        for loop in loops:
            loop.stop()
        deadline = self._clock() + STOP_TIMEOUT_S
        for loop in loops:
            self._fenced_at.pop(loop.partition, None)
            if not loop.thread.join(max(0.0, deadline - self._clock())):
                log.warning("task did not end in time; its successor fences it", partition=loop.partition)

    def stop_all(self) -> None:
        """End all tasks."""
        self.stop(list(self._loops))

    def check(self) -> None:
        """Start fenced tasks again after a pause, and raise what a task could not go on from."""
        now = self._clock()
        for partition, loop in list(self._loops.items()):
            if loop.failure is not None:
                raise loop.failure
            if loop.fenced and now - self._fenced_at.setdefault(partition, now) > FENCED_PAUSE_S:
                del self._loops[partition], self._fenced_at[partition]
                self.start([partition])
                # Two that fence each other again and again get nowhere.
                self._loops[partition].moved_at = loop.moved_at

    @property
    def tasks(self) -> int:
        """How many there are."""
        return len(self._loops)

    def lag(self) -> int:
        """How many offsets of the inputs are not folded, as far as the tasks know."""
        return sum(loop.lag or 0 for loop in self._loops.values())

    def quietest(self) -> tuple[float, str]:
        """When the task that has not moved for longest last did, or had nothing to do, in seconds of the clock; and what is to
        be said of it. Without a task nothing is to be done.
        """
        if not self._loops:
            return self._clock(), ""
        loop = min(self._loops.values(), key=lambda loop: loop.moved_at)
        waits = f", {loop.lag:,} offsets wait" if loop.lag else ""
        return loop.moved_at, f"task {loop.partition} is {loop.phase}{waits}{f': {loop.detail}' if loop.detail else ''}"

    def caught_up(self) -> list[int]:
        """The partitions whose tasks run, and have folded all that was there when they were opened."""
        return [partition for partition, loop in self._loops.items() if loop.phase == Phase.RUNNING and loop.caught_up]

    def silent_for_s(self) -> float:
        """Seconds since the quietest task that should be working made a step."""
        now = self._clock()
        return max((now - loop.turned_at for loop in self._loops.values() if loop.phase != Phase.STOPPED), default=0.0)

    def offsets_next(self) -> dict[tuple[str, int], int]:
        """Per (topic, partition) the offset to read next, of tasks that run."""
        return {
            (topic, partition): offset
            for partition, loop in list(self._loops.items())
            for topic, offset in loop.offsets_next.items()
        }

    def summary(self) -> tuple[Phase, str]:
        """The phase that says most about the whole, and its detail."""
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
