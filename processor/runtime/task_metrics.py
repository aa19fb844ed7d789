"""The metrics of a pipeline's tasks, reported once a cycle from the counts that the tasks keep anyway."""

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

# Bounds the values of a task that no loop drives, as in a simulation: nothing collects these values.
_KEPT = 1_000


class TaskMetrics:
    """The metrics of a task that its progress does not hold, until the loop collects them.

    One thread may add values while another thread collects.

    Attributes:
        written: for each transaction, the number of records in topics beside the changelog.
        took_s: for each transaction, the seconds from the read of the records to the commit.
    """

    def __init__(self) -> None:
        self.written: deque[int] = deque(maxlen=_KEPT)
        self.took_s: deque[float] = deque(maxlen=_KEPT)


class Figures:
    """The metrics of one pipeline."""

    def __init__(self, telemetry: Telemetry = SILENT, domain: str = "") -> None:
        self._telemetry = telemetry
        self._domain = domain

    def turned(self, before: TaskProgress, after: TaskProgress, done: TaskMetrics) -> None:
        """Report a cycle; `before` is the progress as of the last report."""
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
        """Count an aborted transaction."""
        self._telemetry.add(ABORTED, domain=self._domain)

    def started_over(self) -> None:
        """Count a task that has to be reopened."""
        self._telemetry.add(STARTED_OVER, domain=self._domain)
