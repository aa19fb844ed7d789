"""The retention of a decision log: a publisher deletes decisions that are in the changelog.

A replica needs a decision until a publisher has written the decision to the changelog. From then on, a starting replica reads
the changelog, and the log from the offset in the changelog's progress. So retention deletes only records before that offset:

- The last committed progress does not count. The broker may still write the transaction's markers, and a reader of the
  changelog then finds the progress before. A progress counts once the next transaction of the same task has begun.
- An open transaction in the changelog hides later progress from a starting replica. So the progress that a reader of committed
  records finds limits the deletion too.
- The minimum age serves replicas in the middle of reading, and people. A replica that reads too late starts over from the
  changelog, so the clock affects only the frequency of such restarts.

A fenced publisher that has not read of the fence deletes by its own progress, and so less than its successor.
"""

from collections.abc import Callable

import structlog

from onefold.processor.core.decision_log import DecisionLog
from onefold.processor.core.errors import ProcessorError
from onefold.processor.runtime.changelog import DecidedIn, TaskProgress
from onefold.processor.runtime.interval import Every

log = structlog.get_logger()

# Maximum interval of the checks. Each check costs the broker several requests, and a slightly later deletion does no harm.
LOOK_MAX_S = 10.0


class Retention:
    """The retention of one task's publisher. Not safe to share between threads.

    Args:
        kept_s: the minimum age of a deleted record, in seconds. None: the log keeps all records.
        committed: reads the task's last progress record with read_committed. None: no open transaction hides later progress.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        kept_s: float | None,
        *,
        committed: Callable[[], bytes | None] | None = None,
        step: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float],
    ) -> None:
        self._kept_s = kept_s
        self._committed = committed
        self._step = step
        self._look = Every(min(LOOK_MAX_S, (kept_s or 0) / 10), clock)
        self._said = ""

    def turn(self, decisions: DecisionLog, known: TaskProgress) -> None:
        """Delete old decisions, if a check is due. A failed deletion is only logged: the records cost disk space.

        Args:
            decisions: the task's log.
            known: a progress such that every reader of the changelog finds the same or a later one.
        """
        if self._kept_s is None or not self._look.is_due():
            return
        try:
            self._delete(decisions, known, self._kept_s)
        except ProcessorError as error:
            if str(error) != self._said:
                log.warning("decisions stay longer than they have to", reason=str(error), code=str(error.code))
                self._said = str(error)

    def _delete(self, decisions: DecisionLog, known: TaskProgress, kept_s: float) -> None:
        own = known.decided_in
        identity = decisions.identity()
        if own is None or identity.topic_id != own.log_id:
            return  # the progress holds an offset of another log
        needed = self._needed(own)
        if needed is None:
            return
        offset = min(needed, decisions.older_than(kept_s))
        if offset > identity.start:
            self._step("before_delete")
            decisions.delete_before(offset)
            self._step("after_delete")

    def _needed(self, own: DecidedIn) -> int | None:
        """The first offset of the log that a replica may need. None: a replica may need the whole log."""
        if self._committed is None:
            return own.offset
        found = self._committed()
        seen = TaskProgress.decode(found).decided_in if found else None
        return min(own.offset, seen.offset) if seen is not None else None
