"""What is deleted from a decision log: what nobody needs any more, because the changelog has it.

A decision is needed until the publisher has put it into the changelog. Who starts then begins there, and reads the log from the
offset on that the changelog's progress names. So all before that offset may go, and never anything else:

- The progress that counts is not the one that was committed last. Of that the broker may still be writing the markers, and who
  reads the changelog finds the one before it. It is complete when the next transaction of the same task has begun.
- Somebody else's hanging transaction in the changelog hides later progress from whoever starts. So the progress that readers
  of committed records see counts as well.
- How old a record has to be is for those who are in the middle of reading, and for people. A replica that comes too late all
  the same starts from the changelog again; so nothing depends on a clock but how often that happens.

Whoever publishes deletes. One that was fenced and does not know it deletes what its own progress allowed: less than what its
successor's allows.
"""

from collections.abc import Callable

import structlog

from onefold.processor.core.decision_log import DecisionLog
from onefold.processor.core.errors import ProcessorError
from onefold.processor.runtime.changelog import DecidedIn, TaskProgress
from onefold.processor.runtime.interval import Every

log = structlog.get_logger()

# What is over the age by a tenth, or by so much, makes no difference; to look costs the broker four requests, and to delete one.
LOOK_MAX_S = 10.0


class Retention:
    """Of one task's publisher. Not safe to share between threads.

    Args:
        kept_s: how old a record is at least when it is deleted. None: none is.
        committed: gives the task's last progress record, as readers of committed records see it. None: nothing hides a later
            one.
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
        """Delete what may go, when it is time to look. What cannot be deleted stays: that is nobody's trouble but the disk's.

        Args:
            decisions: the task's log.
            known: a progress that whoever reads the changelog finds, or a later one.
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
            return  # offsets of another log
        needed = self._needed(own)
        if needed is None:
            return
        offset = min(needed, decisions.older_than(kept_s))
        if offset > identity.start:
            self._step("before_delete")
            decisions.delete_before(offset)
            self._step("after_delete")

    def _needed(self, own: DecidedIn) -> int | None:
        """The first offset of the log that somebody may need; None: all of it."""
        if self._committed is None:
            return own.offset
        found = self._committed()
        seen = TaskProgress.decode(found).decided_in if found else None
        return min(own.offset, seen.offset) if seen is not None else None
