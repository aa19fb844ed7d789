"""Lands one batch while Spark reads the next one.

Nothing about exactly-once hangs on it: a batch may only land where it continues what is stored, whoever comes with it and
when. One at a time, in the order in which they come, and none after one that failed.
"""

from collections.abc import Callable

from onefold.spark_sink.landing.protocols import Scheduler


class Lander:
    """Hand over what is left to do about a batch. `failure` is what the first one that did not land ran into."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.failure: BaseException | None = None
        self._scheduler = scheduler
        self._work: Callable[[], None] | None = None
        self._closing = self._ended = False
        scheduler.start(f"landing {name}", self._run)

    def hand_over(self, work: Callable[[], None]) -> None:
        """Begin with `work`, as soon as the batch before has landed. Raises what that one failed with."""
        self.finish()
        self._work = work
        self._scheduler.changed()

    def finish(self) -> None:
        """Wait until nothing is left to land. Raises what a batch failed with."""
        self._scheduler.wait(lambda: self._work is None or self._ended)
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Land nothing further. What is being landed is waited for; let go of its connection first to have that rolled back."""
        self._closing = True
        self._scheduler.changed()
        self._scheduler.wait(lambda: self._ended)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        finally:
            # whoever comes late must not wait: not even who had found it free, and hands over when it has ended
            self.failure = self.failure or RuntimeError("the writer has ended")
            self._ended = True
            self._scheduler.changed()

    def _step(self) -> bool:
        """Land the next batch; False when none will come."""
        self._scheduler.wait(lambda: self._work is not None or self._closing)
        if self._work is None:
            return False
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - kept for whoever waits; even an exit must not pass unanswered
            self.failure = error
        finally:
            self._work = None  # and the rows with it: the next batch may be hours away
            self._scheduler.changed()
        return True
