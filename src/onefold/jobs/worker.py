"""The processing of one job by a worker. A worker may crash at any step, may be late, and may share the job with a second one.

The module imports no client. The caller provides the queue, the rows, the effect, the clock and the random numbers, and a
function to call at each step, where a test can stop the worker.

A worker acknowledges a message only after its job is done. A worker that loses a race does not acknowledge the message, because
the other worker may have the same message, for example after a rebalance. Otherwise, after a crash of the other worker, the
message would not arrive again, and the job would wait for a person.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from onefold.jobs.protocols import Done, Effect, Job, JobRows, Message, PendingRow, Queue, Refuse
from onefold.processor.core.errors import Refused
from onefold.processor.runtime.backoff import backoff_s

#: The steps at which a test can stop a worker, in order. The steps of a checkpoint repeat for each checkpoint.
STEPS = (
    "received",
    "looked",
    "added",
    "put_again",
    "in_order",
    "claimed",
    "still_to_do",
    "known",
    "put_back",
    "nothing_between",
    "worked",
    "checkpointed",
    "finished",
    "entered",
    "removed",
    "acknowledged",
    "woken",
)

# The minimum wait for a job claimed by another worker. Without a minimum, a fast clock would cause a busy loop.
_LOOK_AGAIN_S = 0.05
# The maximum length of a reason, because an error may quote its whole input.
_REASON_CHARACTERS_MAX = 500


class MessageOutcome(Enum):
    """The outcome of one message."""

    DONE = "done"
    REPEATED = "repeated"  # the job was done before
    DEFERRED = "deferred"  # an earlier job of the log is not done
    BUSY = "busy"  # another worker has claimed the job
    LOST = "lost"  # another worker has taken the job over
    HANDED_OVER = "handed over"  # the time budget ended, or the worker has to stop
    FAILED = "failed"  # the effect raised an exception
    REFUSED = "refused"  # the effect raised `Refuse`: the job is impossible


@dataclass(frozen=True)
class Limits:
    """The time limits of a worker, in seconds.

    Attributes:
        timeout_s: after this time without a write, other workers may take an active job over. Longer than the work between two
            checkpoints of any job.
        budget_s: after this time on one job, a worker releases the job at the next checkpoint, for the turn of other jobs.
        first_s: the maximum wait after the first deferral. Doubles with each deferral.
        longest_s: the maximum wait after any deferral.
    """

    timeout_s: float = 30.0
    budget_s: float = 300.0
    first_s: float = 0.5
    longest_s: float = 60.0


class Worker:
    """Does the jobs of one queue sequentially.

    Args:
        clock: monotonic seconds, only for the time budget.
        dice: returns a random number from 0.0 to 1.0, for the jitter.
        step: called with each name of `STEPS`.
        stopping: called after each checkpoint; returns whether the worker has to stop.
    """

    def __init__(
        self,
        queue: Queue,
        pending: JobRows,
        effect: Effect,
        limits: Limits,
        *,
        clock: Callable[[], float],
        dice: Callable[[], float],
        step: Callable[[str], None] = lambda name: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._queue = queue
        self._pending = pending
        self._effect = effect
        self._limits = limits
        self._clock = clock
        self._dice = dice
        self._step = step
        self._stopping = stopping

    def work(self, timeout_s: float) -> MessageOutcome | None:
        """Process the next visible message, after a wait of at most `timeout_s`. None: no message was visible."""
        message = self._queue.receive(timeout_s)
        return None if message is None else self._handle(message)

    def _handle(self, message: Message) -> MessageOutcome:
        job = message.job
        self._step("received")
        if self._pending.done(job) is not None:
            return self._repeated(message)
        self._step("looked")
        self._pending.add(job)
        self._step("added")
        row = self._pending.find(job)
        if row is None:
            # Another worker has just finished the job. The next delivery detects the done job.
            return self._hide(message, 0.0, MessageOutcome.BUSY)
        earlier = self._pending.earlier(job) if self._effect.ordered else None
        if earlier is not None:
            self._put_again(earlier)
            self._pending.defer(row, "an earlier job of its log is pending")
            return self._back_off(message, row, MessageOutcome.DEFERRED)
        self._step("in_order")
        increment = self._pending.claim(row, self._limits.timeout_s)
        if increment is None:
            return self._busy(message)
        self._step("claimed")
        return self._claimed(message, row, increment)

    def _claimed(self, message: Message, row: PendingRow, increment: int) -> MessageOutcome:
        job = message.job
        if self._pending.done(job) is not None:  # finished between the first check and the claim
            return self._repeated(message)
        self._step("still_to_do")
        newest = self._pending.newest_done(job) if self._effect.ordered else None
        try:
            reason = self._disorder(job, newest, increment) if self._effect.ordered else ""
            if reason:
                return self._give_up(message, row, increment, reason, MessageOutcome.DEFERRED)
            self._step("nothing_between")
            return self._do(message, row, increment, newest)
        except _EffectFailed as failed:
            return self._give_up(message, row, failed.increment, str(failed), failed.outcome)

    def _put_again(self, earlier: PendingRow) -> None:
        """Put an earlier job of the log into the queue again if no worker has attempted the job.

        A pending row blocks the later jobs of its log. A worker that crashed between inserting the row and writing the message
        has left a row without a message. `defer` comes last, so that a crash before repeats the put.
        """
        if not earlier.unmet:
            return
        self._queue.put(earlier.job)
        self._step("put_again")
        self._pending.defer(earlier, "the job was put into the queue again: no worker had seen it")

    def _disorder(self, job: Job, newest: Done | None, increment: int) -> str:
        """Return the reason to defer the job, or "". Adds unknown earlier jobs to the pending rows and to the queue."""
        with _Blamed(increment):
            missing = self._effect.before(job, newest)
        if missing is None:
            return "its log has not come that far"
        for one in missing:
            # Add the row first. In the reverse order, another worker may finish the job in between, and the row would remain.
            self._pending.add(one)
            self._step("known")
            self._queue.put(one)
            self._step("put_back")
        return f"{len(missing)} earlier jobs of its log were not pending yet" if missing else ""

    def _do(self, message: Message, row: PendingRow, increment: int, newest: Done | None) -> MessageOutcome:
        """Run the effect. If another worker has taken the job over, the next write is rejected, and this worker stops."""
        job, state, began = message.job, row.state, self._clock()
        with _Blamed(increment):
            states = iter(self._effect.steps(job, state, newest))
        while True:
            with _Blamed(increment):
                more = _kept(next(states, _END))
            if more is _END:
                break
            state = more
            self._step("worked")
            next_increment = self._pending.checkpoint(job, increment, state)
            if next_increment is None:
                return self._busy(message, MessageOutcome.LOST)
            increment = next_increment
            self._step("checkpointed")
            self._queue.keep_alive()
            if self._stopping() or self._clock() - began >= self._limits.budget_s:
                self._pending.release(job, increment)
                return self._hide(message, 0.0, MessageOutcome.HANDED_OVER)
        with _Blamed(increment):
            result = _kept(self._effect.finish(job, state))
        self._step("finished")
        if not self._pending.finish(job, increment, result):
            return self._busy(message, MessageOutcome.LOST)
        self._step("entered")
        self._pending.remove(job, increment)
        self._step("removed")
        return self._acknowledge(message, MessageOutcome.DONE)

    def _repeated(self, message: Message) -> MessageOutcome:
        # A remaining row means that the worker crashed after finishing the job, before waking the next job. Other repeats wake
        # no job, because each would start a further chain of wakes up to the end of the log.
        died = self._pending.remove(message.job)
        self._step("removed")
        return self._acknowledge(message, MessageOutcome.REPEATED, wakes=died)

    def _acknowledge(self, message: Message, outcome: MessageOutcome, *, wakes: bool = True) -> MessageOutcome:
        self._queue.acknowledge(message)
        self._step("acknowledged")
        if wakes and self._effect.ordered:
            following = self._pending.following(message.job)
            if following is not None:
                # A duplicate of a waiting message. If the duplicate is lost, the waiting message arrives after its wait.
                self._queue.put(following)
                self._step("woken")
        return outcome

    def _busy(self, message: Message, outcome: MessageOutcome = MessageOutcome.BUSY) -> MessageOutcome:
        """Hide the message of a job claimed by another worker until the possible time-out of that worker."""
        row = self._pending.find(message.job)
        if row is None:
            return self._hide(message, 0.0, outcome)
        if not row.active:
            return self._back_off(message, row, outcome)
        return self._hide(message, max(_LOOK_AGAIN_S, self._limits.timeout_s - row.quiet_s), outcome)

    def _give_up(
        self, message: Message, row: PendingRow, increment: int, reason: str, outcome: MessageOutcome
    ) -> MessageOutcome:
        if not self._pending.release(message.job, increment, reason=reason[:_REASON_CHARACTERS_MAX]):
            return self._busy(message, MessageOutcome.LOST)
        return self._back_off(message, row, outcome)

    def _back_off(self, message: Message, row: PendingRow, outcome: MessageOutcome) -> MessageOutcome:
        longest_s = backoff_s(self._limits.first_s, self._limits.longest_s, row.retries + 1)
        # Full jitter, so that jobs deferred at the same time do not return at the same time.
        return self._hide(message, self._dice() * longest_s, outcome)

    def _hide(self, message: Message, seconds: float, outcome: MessageOutcome) -> MessageOutcome:
        self._queue.hide(message, seconds)
        return outcome


_END: Any = object()
# The JSON escape of U+0000, but not an escaped backslash before "u0000".
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _kept(value: Any) -> Any:
    """Return the value of an effect if a row can store the value. Raises TypeError or ValueError, errors of the effect."""
    if value is not _END and _NUL.search(json.dumps(value, allow_nan=False)):
        raise ValueError("a text with the character U+0000, which PostgreSQL does not keep")
    return value


class _EffectFailed(Exception):
    """An exception of an effect, with the job's increment at the time."""

    def __init__(self, error: Exception, increment: int) -> None:
        refused = isinstance(error, Refuse)
        super().__init__(f"refused: {error}" if refused else f"{type(error).__name__}: {error}")
        self.outcome = MessageOutcome.REFUSED if refused else MessageOutcome.FAILED
        self.increment = increment


class _Blamed:
    """Converts an exception of the effect into `_EffectFailed`, which only delays the job's log.

    An exception outside of the block is an error of the worker. `Refused`, for example for a missing right in Kafka, is always
    an error of the worker.
    """

    def __init__(self, increment: int) -> None:
        self._increment = increment

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, Refused):
            raise _EffectFailed(error, self._increment) from error
