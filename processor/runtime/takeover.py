"""The timing of replicas: when a replica proposes, and when a replica takes over publishing.

The timing affects neither which proposal is accepted (see `core.decision`), nor that a version is published once (see
`publisher`).
"""

from collections import Counter
from collections.abc import Callable

# The backoff after a peer's accepted proposal, at least the time of two decisions at a steady rate. In a backlog, a multiple of
# the last decision's time, or every replica would compute every decision. After a crash of the author, the task pauses as long.
BACKOFF_S, TIMES_AS_LONG, BACKOFF_MAX_S = 0.025, 3, 1.0
# Minimum time between two claims of a process, and between the first decision read of a task and a claim: the process may still
# restore other tasks.
CLAIM_EVERY_S = 5.0
# A claim lasts for this number of decisions. A task without a decision for this time is idle, and does not count.
CLAIM_DECISIONS, IDLE_S = 10, 3.0
# A fenced replica doubles its takeover timeout, at most this often, until it publishes. Without the doubling, replicas whose
# transactions take longer than the timeout fence each other without end. 32 times 0.6 s exceeds a transaction's timeout (15 s).
DOUBLINGS_MAX = 5
# The doublings shrink by this factor with each new oldest unpublished version.
DECAY = 0.98


class TaskShares:
    """The author of each task's last accepted proposal, shared by the tasks of a process. Each thread writes one entry."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name, self._clock = name, clock
        self._authors: dict[int, tuple[str, float]] = {}
        self._claimed_at = clock()

    def decided(self, task: int, author: str) -> None:
        """Note the author of an accepted proposal."""
        now = self._clock()
        if task not in self._authors:
            self._claimed_at = now
        self._authors[task] = author, now

    def claim(self, task: int) -> bool:
        """Claim the task, if the author decides at least two tasks more than this process. Returns whether the claim holds."""
        now = self._clock()
        if task not in self._authors or now - self._claimed_at < CLAIM_EVERY_S:
            return False
        busy = Counter(author for author, at in [*self._authors.values()] if now - at < IDLE_S)
        if busy[self._authors[task][0]] - busy[self._name] < 2:
            return False
        self._claimed_at = now
        return True


class ProposalBackoff:
    """When one replica proposes: the author of the last accepted proposal at once, any other replica after a backoff."""

    def __init__(self, task: int, shares: TaskShares, clock: Callable[[], float]) -> None:
        self._task, self._shares, self._clock = task, shares, clock
        self._lost = False
        self._claimed = 0  # the decisions that the claim still lasts for
        self._since: float | None = None  # the time since which records wait to be proposed
        self._backoff_s = BACKOFF_S

    def decided(self, *, ours: bool) -> None:
        """Note that a proposal was accepted. If no records waited here, there is no backlog, and the next backoff is short."""
        took_s = 0.0 if self._since is None else self._clock() - self._since
        self._backoff_s = min(max(BACKOFF_S, TIMES_AS_LONG * took_s), BACKOFF_MAX_S)
        self._lost, self._since = not ours, None
        self._claimed = 0 if ours else max(0, self._claimed - 1)

    def waits(self) -> bool:
        """Whether to leave the next proposal to the peers for now. The backoff begins with the first call after a decision."""
        if self._since is None:
            self._since = self._clock()
        if self.left_s > 0 and self._shares.claim(self._task):
            self._claimed = CLAIM_DECISIONS
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """The remaining backoff, in seconds."""
        if not self._lost or self._claimed or self._since is None:
            return 0.0
        return max(0.0, self._since + self._backoff_s - self._clock())


class TakeoverTimeout:
    """The time for which a decided version stays unpublished before this replica publishes. Different for each replica."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._looked_at = clock()
        self._since: float | None = None
        self._waited_s = self._doublings = 0.0

    def fenced(self) -> None:
        """Double the timeout: another replica has taken over publishing."""
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        self._waited_s, self._looked_at = 0.0, self._clock()

    def published(self) -> None:
        """Restore the first timeout: this replica has published a version."""
        self._doublings = 0.0

    def is_over(self, since: float | None) -> bool:
        """Whether to publish; called at short intervals.

        `since` is the time since which a version is unpublished; None if all versions are published.
        """
        now = self._clock()
        passed_s, self._looked_at = now - self._looked_at, now
        if since != self._since:
            self._since, self._waited_s = since, 0.0
            self._doublings *= DECAY
        if since is None:
            return False
        timeout_s = self._timeout_s * 2**self._doublings
        # A call counts at most half of the timeout: a resumed replica must first read which versions the peers have published.
        self._waited_s += min(passed_s, now - since, timeout_s / 2)
        return self._waited_s >= timeout_s
