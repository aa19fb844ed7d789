"""Which replica acts next: when a replica proposes, and when it takes over publishing.

Nothing here affects which proposal is accepted, or that a version is published once: that is `core.decision` and the fence.
"""

from collections import Counter
from collections.abc import Callable

# A replica whose proposal was not accepted backs off. At least as long as two decisions take at a steady rate; in a backlog a
# multiple of the last decision, or every replica would compute every decision. This is the pause after a crash of the author.
BACKOFF_S, TIMES_AS_LONG, BACKOFF_MAX_S = 0.025, 3, 1.0
# A process claims one task in this time, and none right after it has read a task for the first time: it may still restore others.
CLAIM_EVERY_S = 5.0
# A claim lasts for so many decisions; a task without a decision for so long is idle and does not count.
CLAIM_DECISIONS, IDLE_S = 10, 3.0
# A fenced replica doubles its takeover timeout, at most this often, until it publishes. Without the doubling, replicas whose
# transactions take longer than the timeout fence each other without end. 32 times 0.6 s exceeds a transaction's timeout (15 s).
DOUBLINGS_MAX = 5
# The doublings shrink by this factor each time that the oldest unpublished version is another one.
DECAY = 0.98


class TaskShares:
    """Which replica decides which task, as the replicas of one process read it. Threads share it: each writes one entry."""

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
        """Claim the task, if its author decides at least two tasks more than this process. Whether it is claimed."""
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
        self._claimed = 0  # for so many decisions
        self._since: float | None = None  # when there was something to propose
        self._backoff_s = BACKOFF_S

    def decided(self, *, ours: bool) -> None:
        """Note that a proposal was accepted. With nothing to propose there is no backlog, however long that took."""
        took_s = 0.0 if self._since is None else self._clock() - self._since
        self._backoff_s = min(max(BACKOFF_S, TIMES_AS_LONG * took_s), BACKOFF_MAX_S)
        self._lost, self._since = not ours, None
        self._claimed = 0 if ours else max(0, self._claimed - 1)

    def waits(self) -> bool:
        """Whether to leave the next decision to others for now. The time begins with the first question."""
        if self._since is None:
            self._since = self._clock()
        if self.left_s > 0 and self._shares.claim(self._task):
            self._claimed = CLAIM_DECISIONS
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """How long to wait for the proposal of another replica."""
        if not self._lost or self._claimed or self._since is None:
            return 0.0
        return max(0.0, self._since + self._backoff_s - self._clock())


class TakeoverTimeout:
    """How long a replica sees a decided version unpublished before it publishes itself. Different for each replica."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._looked_at = clock()
        self._since: float | None = None
        self._waited_s = self._doublings = 0.0

    def fenced(self) -> None:
        """Wait twice as long: another replica has taken publishing over."""
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        self._waited_s, self._looked_at = 0.0, self._clock()

    def published(self) -> None:
        """Wait as long as at first: this replica has published a version."""
        self._doublings = 0.0

    def is_over(self, since: float | None) -> bool:
        """Whether to publish; asked at short intervals. `since`: when the next version was decided; None if all is published."""
        now = self._clock()
        passed_s, self._looked_at = now - self._looked_at, now
        if since != self._since:
            self._since, self._waited_s = since, 0.0
            self._doublings *= DECAY
        if since is None:
            return False
        timeout_s = self._timeout_s * 2**self._doublings
        # Half of it at most for one look: a replica that was paused reads first what others have published.
        self._waited_s += min(passed_s, now - since, timeout_s / 2)
        return self._waited_s >= timeout_s
