"""Something that is done now and then."""

from collections.abc import Callable


class Every:
    """Due at once, and again so many seconds after it was.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._at: float | None = None

    def is_due(self) -> bool:
        """Whether it is time; if so, the time begins anew."""
        now = self._clock()
        if self._at is not None and now - self._at < self._seconds:
            return False
        self._at = now
        return True
