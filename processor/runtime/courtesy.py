"""When a replica leaves the next decision to the others for a little while.

Without that each decision is computed and written as often as there are replicas. It says only when to propose, and has no part
in who wins.
"""

from collections.abc import Callable

# Who lost the last decision waits so long. When the winner has died, this is the pause.
COURTESY_S = 0.015


class Courtesy:
    """Of one replica. `clock` tells monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lost = False
        self._since: float | None = None

    def decided(self, *, ours: bool) -> None:
        """A decision was taken over, our own or somebody else's."""
        self._lost, self._since = not ours, None

    @property
    def left_s(self) -> float:
        """How long to wait for somebody else's proposal."""
        return 0.0 if self._since is None else max(0.0, self._since + COURTESY_S - self._clock())

    def waits(self) -> bool:
        """Whether to leave what there is to propose to the others for now. The time begins with the first question."""
        if not self._lost:
            return False
        if self._since is None:
            self._since = self._clock()
        elif self._clock() >= self._since + COURTESY_S:
            self._lost, self._since = False, None
        return self._lost
