"""When a replica leaves the next decision to the others for a little while.

Without that each decision is computed and written as often as there are replicas. It says only when to propose, and has no part
in who wins.
"""

from collections.abc import Callable

# Who lost the last decision waits so long. When the winner has died, this is the pause. It is half as long again as the time
# between two decisions at a steady rate, so that a winner that lives is seldom forestalled.
COURTESY_S = 0.025
# In a backlog decisions take longer: so many times what the last one took, but no longer than that. With two replicas that both
# compute, a backlog that one of them could clear grows.
TIMES_AS_LONG, COURTESY_MAX_S = 3, 1.0


class Courtesy:
    """Of one replica.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lost = False
        self._since: float | None = None  # when there was something to propose
        self._wait_s = COURTESY_S

    def decided(self, *, ours: bool) -> None:
        """A decision was taken over, our own or somebody else's."""
        # With nothing to propose there is no backlog.
        took_s = 0.0 if self._since is None else self._clock() - self._since
        self._wait_s = min(max(COURTESY_S, TIMES_AS_LONG * took_s), COURTESY_MAX_S)
        self._lost, self._since = not ours, None

    def leaves(self) -> None:
        """The next decision is left to another one, as if that had won the last."""
        self._lost, self._since = True, None

    def is_left(self) -> None:
        """Another one has left it the next decision, as if this had won the last."""
        self._lost = False

    @property
    def left_s(self) -> float:
        """How long to wait for the proposal of another replica."""
        return max(0.0, self._since + self._wait_s - self._clock()) if self._lost and self._since is not None else 0.0

    def waits(self) -> bool:
        """Whether to leave what there is to propose to the others for now. The time begins with the first question."""
        if self._since is None:
            self._since = self._clock()
        return self.left_s > 0
