"""What the tasks of a domain have done, told once a turn. The figures are those that the tasks keep anyway."""

from collections import deque

from onefold.processor.runtime.changelog import TaskProgress
from onefold.telemetry import (
    ABORTED,
    DEAD_LETTERS,
    RECORDS,
    SILENT,
    STARTED_OVER,
    TRANSACTION_S,
    TRANSACTIONS,
    WRITTEN,
    Telemetry,
)

# Where nobody drives a task, as in a simulation, nobody takes what it has done either.
_KEPT = 1_000


class TaskMetrics:
    """What a task has done beside its progress, until whoever drives it takes it. One thread may add while another takes.

    Attributes:
        written: records in other topics than the changelog, of each transaction.
        took_s: how long transactions took, from their records to their commit.
    """

    def __init__(self) -> None:
        self.written: deque[int] = deque(maxlen=_KEPT)
        self.took_s: deque[float] = deque(maxlen=_KEPT)


class Figures:
    """Of one domain."""

    def __init__(self, telemetry: Telemetry = SILENT, domain: str = "") -> None:
        self._telemetry = telemetry
        self._domain = domain

    def turned(self, before: TaskProgress, after: TaskProgress, done: TaskMetrics) -> None:
        """A turn has come to its end; `before`: the progress that was told last."""
        tell, domain = self._telemetry, self._domain
        while done.written:
            tell.add(WRITTEN, done.written.popleft(), domain=domain)
        while done.took_s:
            tell.took(TRANSACTION_S, done.took_s.popleft(), domain=domain)
        if after.transactions != before.transactions:
            tell.add(TRANSACTIONS, after.transactions - before.transactions, domain=domain)
            tell.add(RECORDS, sum(after.counts) - sum(before.counts), domain=domain)
            tell.add(DEAD_LETTERS, after.counts.dead - before.counts.dead, domain=domain)

    def aborted(self) -> None:
        """A transaction was."""
        self._telemetry.add(ABORTED, domain=self._domain)

    def started_over(self) -> None:
        """A task has to be opened again."""
        self._telemetry.add(STARTED_OVER, domain=self._domain)
