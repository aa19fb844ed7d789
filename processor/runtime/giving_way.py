"""A replica that begins beside others lets them have the cores.

It reads as many records as the changelog has, as fast as it can, while the others decide what has just come in: nobody waits for
the one, and somebody for each of the others' decisions. So all tasks of the process together read at most half of the time.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from onefold.processor.core.decision_log import DecisionLog
from onefold.processor.runtime.every import Every

# So many records are read at a stretch, in some milliseconds: no more than the others' threads have of a core at a time.
RECORDS = 500
# What took longer waited for something, and has left the cores to others already.
REST_MAX_S = 0.005
# Whether anything is decided is asked so often. Where all replicas begin at once, nothing is, and they begin at full speed.
ASK_EVERY_S = 1.0


class GivesWay:
    """Of one process.

    Args:
        lock: held while it rests, so that its tasks rest together.
        clock: monotonic seconds.
        sleep: rests so many seconds.
    """

    def __init__(
        self, lock: AbstractContextManager[object], clock: Callable[[], float], sleep: Callable[[float], object]
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._sleep = sleep
        self._rested_at = clock()

    def beside(self, log: DecisionLog, beat: Callable[[], None]) -> Callable[[], None]:
        """To be called with each record that the task with this log reads. It calls `beat`, and rests when it is time."""
        asks = Every(ASK_EVERY_S, self._clock)
        read = 0
        end = -1
        decided = False

        def read_one() -> None:
            nonlocal read, end, decided
            beat()
            read += 1
            if read % RECORDS:
                return
            if asks.is_due():
                before, end = end, log.identity().end
                decided = end != before
            if decided:
                self._rest()

        return read_one

    def _rest(self) -> None:
        with self._lock:
            self._sleep(min(self._clock() - self._rested_at, REST_MAX_S))
            self._rested_at = self._clock()
