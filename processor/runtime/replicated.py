"""A task with replicas, as a loop drives it: the replica, and beside it the thread in which it publishes when it has to."""

from collections.abc import Callable, Sized

from onefold.processor.runtime.changelog import Progress
from onefold.processor.runtime.figures import Done
from onefold.processor.runtime.keeping import Standing
from onefold.processor.runtime.publishing import Publishing
from onefold.processor.runtime.replica import Replica
from onefold.processor.runtime.thread import LifeThread

# A publisher ends after the transaction in hand; one that hangs is fenced by the next.
STOP_TIMEOUT_S = 5.0


class Replicated:
    """See `loop.Runs`.

    Args:
        publishing: makes what publishes for the replica.
    """

    def __init__(self, replica: Replica, publishing: Callable[[Replica], Publishing]) -> None:
        self._replica = replica
        self._publishing = publishing(replica)
        self._thread = LifeThread(self._publishing.life, f"publisher-{replica.partition}")
        self._started = False

    @property
    def store(self) -> Sized:
        """The states."""
        return self._replica.store

    @property
    def kept(self) -> Standing:
        """Where the states are, and why."""
        return self._replica.kept

    @property
    def progress(self) -> Progress:
        """What is decided, as far as this replica has taken it over."""
        return self._replica.progress

    @property
    def score(self) -> tuple[int, int]:
        """Of the decisions since it was opened, how many it has won, and how many there were."""
        return self._replica.won, self._replica.decided

    @property
    def lag(self) -> int | None:
        """How many offsets of its inputs are not decided, by where they ended when it looked last."""
        return self._replica.lag

    @property
    def unpublished_since(self) -> float | None:
        """Since when something decided waits to be published."""
        return self._replica.unpublished_since

    @property
    def done(self) -> Done:
        """How long its proposals took, and what it has published."""
        return self._replica.done

    def open(self) -> None:
        """Restore, and be ready to publish."""
        self._replica.open()
        self._started = True
        self._thread.start()

    def turn(self) -> int:
        """One cycle of the replica. Raises what ended the publishing for good."""
        if self._publishing.failure is not None:
            raise self._publishing.failure
        return self._replica.turn()

    def caught_up(self) -> bool:
        """Whether all is decided that was there when it was opened."""
        return self._replica.caught_up()

    def close(self) -> None:
        """Leave in good order."""
        self._stop()
        self._replica.close()

    def retreat(self) -> None:
        """Leave after a known trouble."""
        self._stop()
        self._replica.retreat()

    def abandon(self) -> None:
        """Leave after an error."""
        self._stop()
        self._replica.abandon()

    def _stop(self) -> None:
        self._publishing.stop()
        self._thread.wake()
        if self._started:
            self._thread.join(STOP_TIMEOUT_S)
