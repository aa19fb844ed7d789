"""An interval between two runs of periodic work."""

from collections.abc import Callable


class Every:
    """Periodic work: due at once, then `seconds` after the last time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._at: float | None = None

    def is_due(self) -> bool:
        """Whether the work is due; if so, the next interval begins."""
        now = self._clock()
        if self._at is not None and now - self._at < self._seconds:
            return False
        self._at = now
        return True
