"""How long a replica sees a decided version unpublished before it publishes itself.

A publisher that lives says after each transaction how far it is. How soon it is to be missed depends on how long its transactions
take here and now: a few hundredths of a second on a quiet machine, much longer where cores are short. As with `courtesy`, this
says only who does the work next: what is published, and that it is once, does not depend on it.
"""

from collections.abc import Callable

# Missed after so many times the longest transaction that was seen of late: two that follow each other slowly are no death.
TIMES_AS_LONG = 4
# But after this share of the most at the soonest: to take it up costs several transactions.
LEAST_SHARE = 1 / 3
# A long one is forgotten by this factor a transaction, and a large one a decision: half of it after some thirty, which is about
# a second.
FORGETS = 0.98
# Besides, for each input of a large decision: five times what publishing one takes on a core of its own. Where replicas have all
# cores busy, decisions have thousands, and whoever is not given the time for one is fenced, and all that it did is done again.
AN_INPUT_S = 0.0002
# A fenced replica doubles its waiting time, at most this often, until the replica publishes a version. Without the doubling,
# replicas whose transactions take longer than the waiting time fence each other without end. 32 times the longest waiting time
# exceeds the time-out of a transaction (15 s).
DOUBLINGS_MAX = 5


class Patience:
    """Of one replica, for one task.

    Args:
        most_s: how long the next version may stay unpublished at most, when it is a small one.
        clock: monotonic seconds.
    """

    def __init__(self, most_s: float, clock: Callable[[], float]) -> None:
        self._most_s = most_s
        self._clock = clock
        self._looked_at = clock()
        self._since: float | None = None
        self._waited_s = 0.0
        self._doublings = 0.0

    def fenced(self) -> None:
        """Another replica has taken publishing over from this one."""
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        self._waited_s, self._looked_at = 0.0, self._clock()

    def published(self) -> None:
        """This replica has published a version: the waiting time suffices."""
        self._doublings = 0.0

    def is_over(self, since: float | None, usual: "Usual") -> bool:
        """Asked again and again.

        Args:
            since: when the next version was decided, as far as it is unpublished; None: nothing waits.
            usual: how it is while a publisher lives.
        """
        now = self._clock()
        passed_s, self._looked_at = now - self._looked_at, now
        if since != self._since:
            self._since, self._waited_s = since, 0.0
            self._doublings *= FORGETS
        if since is None:
            return False
        enough_s = min(self._most_s, max(self._most_s * LEAST_SHARE, TIMES_AS_LONG * usual.seconds))
        enough_s += AN_INPUT_S * usual.inputs
        enough_s *= 2**self._doublings
        # One look does not say that it is over. Who was frozen has seen nothing of the others meanwhile, and first hears them.
        self._waited_s += min(passed_s, now - since, enough_s / 2)
        return self._waited_s >= enough_s


class Usual:
    """The longest recent wait of a version until its publication, and the most inputs of a recent version."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.inputs = 0.0

    def decided(self, inputs: int) -> None:
        """One more is to be published, that has so many."""
        self.inputs = max(inputs, FORGETS * self.inputs)

    def saw(self, seconds: float) -> None:
        """Note how long one more version has waited."""
        self.seconds = max(seconds, FORGETS * self.seconds)
