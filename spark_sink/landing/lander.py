"""A thread that lands one batch while Spark reads the next one.

Nothing about exactly-once hangs on it: a batch may only land where it continues what is stored, whoever comes with it and
when. One at a time, in the order in which they come, and none after one that failed.
"""

import queue
import threading
from collections.abc import Callable


class Lander:
    """Give it what is left to do about a batch. `failure` is what the first one that did not land ran into."""

    def __init__(self, name: str) -> None:
        self.failure: BaseException | None = None
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._free = threading.Event()
        self._free.set()
        # a daemon: a process that has waited long enough for its end must not wait for this
        self._thread = threading.Thread(target=self._run, name=f"landing {name}", daemon=True)
        self._thread.start()

    def hand_over(self, work: Callable[[], None]) -> None:
        """Begin with `work`, as soon as the batch before has landed. Raises what that one failed with."""
        self.finish()
        self._free.clear()
        self._work.put(work)

    def finish(self) -> None:
        """Wait until nothing is left to land. Raises what a batch failed with."""
        self._free.wait()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End the thread. What it is landing is waited for; let go of its connection first to have that rolled back."""
        self._work.put(None)
        self._thread.join()
        self.failure = self.failure or RuntimeError("nothing is landed any more")  # whoever comes late must not wait

    def _run(self) -> None:
        for work in iter(self._work.get, None):
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - kept for whoever waits; even an exit must not pass unanswered
                self.failure = error
            finally:
                del work  # and the rows with it: the next batch may be hours away
                self._free.set()
