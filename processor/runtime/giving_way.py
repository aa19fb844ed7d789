"""A replica that begins beside others lets them have the cores.

It reads as many records as the changelog has, as fast as it can, while the others decide what has just come in: nobody waits for
the one, and somebody for each of the others' decisions. So while it reads the changelog the process rests for half of the time.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from onefold.processor.core.decision_log import DecisionLog
from onefold.processor.core.errors import ProcessorError
from onefold.processor.runtime.every import Every

# So many records are read at a stretch, in some milliseconds: no more than the others' threads have of a core at a time.
RECORDS = 500
# What takes longer has mostly waited for something, and left the cores to others already.
REST_MAX_S = 0.005
# Whether anything is decided is asked so often. Where all replicas begin at once, nothing is, and they begin at full speed.
ASK_EVERY_S = 1.0


class GivesWay:
    """Of one process.

    Args:
        lock: held while it rests.
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
        self._resting = False
        self._read = 0

    def beside(self, log: DecisionLog, beat: Callable[[], None]) -> Callable[[], None]:
        """To be called with each record of the changelog that the task with this log reads. It calls `beat`, and rests when it is
        time, and while another task of the process does.
        """
        asks = Every(ASK_EVERY_S, self._clock)
        end = -1
        decided = False

        def read_one() -> None:
            nonlocal end, decided
            beat()
            self._read += 1  # threads may count one for another: it need not be exact
            if self._resting:
                with self._lock:
                    pass
            if self._read < RECORDS:
                return
            self._read = 0
            if asks.is_due():
                # Whoever needs the answer says that there is none.
                with suppress(ProcessorError):
                    before, end = end, log.identity().end
                    decided = end != before
            if decided:
                self._rest()

        return read_one

    def _rest(self) -> None:
        with self._lock:
            self._resting = True
            self._sleep(min(self._clock() - self._rested_at, REST_MAX_S))
            self._resting, self._rested_at = False, self._clock()
