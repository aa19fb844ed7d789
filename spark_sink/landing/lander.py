"""Writes one batch while Spark reads the next batch.

The writer thread writes one batch at a time, in order of arrival, and no batch after a failed batch. Exactly-once does not
depend on the writer thread: the ledger only accepts a batch that continues the stored positions.
"""

from collections.abc import Callable

from onefold.spark_sink.landing.protocols import Scheduler


class Lander:
    """A thread for the writes of one query. `failure` is the error of the first failed batch."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.failure: BaseException | None = None
        self._scheduler = scheduler
        self._work: Callable[[], None] | None = None
        self._closing = self._ended = False
        scheduler.start(f"landing {name}", self._run)

    def hand_over(self, work: Callable[[], None]) -> None:
        """Wait for the previous batch, and start `work` in the writer thread. Raises the error of a failed batch."""
        self.finish()
        self._work = work
        self._scheduler.changed()

    def finish(self) -> None:
        """Wait until no write is in progress. Raises the error of a failed batch."""
        self._scheduler.wait(lambda: self._work is None or self._ended)
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End the writer thread after the current batch. To roll the batch back, close its connection first."""
        self._closing = True
        self._scheduler.changed()
        self._scheduler.wait(lambda: self._ended)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        finally:
            # A late caller must not wait, not even a caller that hands over a batch after the end of the thread.
            self.failure = self.failure or RuntimeError("the writer has ended")
            self._ended = True
            self._scheduler.changed()

    def _step(self) -> bool:
        """Write the next batch. False: the thread is closed, and no batch follows."""
        self._scheduler.wait(lambda: self._work is not None or self._closing)
        if self._work is None:
            return False
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread, even SystemExit
            self.failure = error
        finally:
            self._work = None  # frees the rows, because the next batch may be hours away
            self._scheduler.changed()
        return True
