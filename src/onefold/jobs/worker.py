"""What a worker does with one job, so that it may die anywhere, be late, or be one of two at the same job.

No client of anything is imported here: queue, rows and effect are handed in, and so are the clock, the dice, and what is
called at each step, where a test can stop it.

A message is acknowledged when its job is done, and never before. A worker that loses a race does not acknowledge either: the
other one may have been given the very same message, as after a rebalance. Acknowledged here, it would not come again if the
other one died, and the job would wait for a person.
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

#: Where a worker can be stopped, in the order in which it gets there; those of one checkpoint come once for each.
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

# After the time that is left to somebody else; less than that, and a clock that runs a little fast asks in a circle.
_LOOK_AGAIN_S = 0.05
# What a reason is cut to: an error may quote all that it failed at.
_REASON_CHARACTERS_MAX = 500


class MessageOutcome(Enum):
    """What became of one message."""

    DONE = "done"
    REPEATED = "repeated"  # it was done already
    DEFERRED = "deferred"  # its turn has not come
    BUSY = "busy"  # somebody else is at it
    LOST = "lost"  # somebody else has taken it over
    HANDED_OVER = "handed over"  # the time budget ended, or the worker was asked to stop
    FAILED = "failed"  # the effect raised something
    REFUSED = "refused"  # the effect says that it can never be done


@dataclass(frozen=True)
class Limits:
    """In seconds.

    Attributes:
        timeout_s: who is active and writes nothing for so long is taken for dead; more than any part of a job between two
            checkpoints takes.
        budget_s: after so long on one job a worker lets others have their turn, at the next checkpoint.
        first_s: the longest wait after the first deferral; it doubles with each.
        longest_s: the longest wait of all.
    """

    timeout_s: float = 30.0
    budget_s: float = 300.0
    first_s: float = 0.5
    longest_s: float = 60.0


class Worker:
    """Does the jobs of one queue, one after the other.

    Args:
        clock: monotonic seconds, for the time budget alone.
        dice: a number from 0.0 to 1.0, for the jitter.
        step: called with a name of `STEPS`.
        stopping: whether the worker was asked to stop; it is asked after each checkpoint.
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
        """Take the next message that is visible, waiting up to so many seconds; None: there was none."""
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
            # It was finished a moment ago; the next delivery sees that it is done.
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
        if self._pending.done(job) is not None:  # between the first look and the claim
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
        """A row tells those behind it to wait, and is there before its message. Whoever died between the two, or did not reach
        the queue, has left one that nobody would ever come to. The note that somebody has met it comes last.
        """
        if not earlier.unmet:
            return
        self._queue.put(earlier.job)
        self._step("put_again")
        self._pending.defer(earlier, "the job was put into the queue again: no worker had seen it")

    def _disorder(self, job: Job, newest: Done | None, increment: int) -> str:
        """Why it is not this job's turn, or "". Jobs that were not known to come before it become pending, and are put back
        into the queue.
        """
        with _Blamed(increment):
            missing = self._effect.before(job, newest)
        if missing is None:
            return "its log has not come that far"
        for one in missing:
            # Not the other way round: done by somebody else in between, it would be added when nobody looks at it any more.
            self._pending.add(one)
            self._step("known")
            self._queue.put(one)
            self._step("put_back")
        return f"{len(missing)} earlier jobs of its log were not pending yet" if missing else ""

    def _do(self, message: Message, row: PendingRow, increment: int, newest: Done | None) -> MessageOutcome:
        """The work itself. Each write is refused when somebody has taken the job over: then nothing more is touched."""
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
        # Its row is there yet when whoever did the job died before it woke the next one. Any other repeat wakes nobody: each
        # would begin one more chain of wakes that goes on to the end of the log.
        died = self._pending.remove(message.job)
        self._step("removed")
        return self._acknowledge(message, MessageOutcome.REPEATED, wakes=died)

    def _acknowledge(self, message: Message, outcome: MessageOutcome, *, wakes: bool = True) -> MessageOutcome:
        self._queue.acknowledge(message)
        self._step("acknowledged")
        if wakes and self._effect.ordered:
            following = self._pending.following(message.job)
            if following is not None:
                # A duplicate of one that waits; if it gets lost, that one's own delivery comes when its wait is over.
                self._queue.put(following)
                self._step("woken")
        return outcome

    def _busy(self, message: Message, outcome: MessageOutcome = MessageOutcome.BUSY) -> MessageOutcome:
        """Somebody else has it: it is looked at again when that one may have timed out."""
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
        # Full jitter: many jobs that were deferred at once do not come back at once.
        return self._hide(message, self._dice() * longest_s, outcome)

    def _hide(self, message: Message, seconds: float, outcome: MessageOutcome) -> MessageOutcome:
        self._queue.hide(message, seconds)
        return outcome


_END: Any = object()
# U+0000 as JSON spells it, and not a backslash that was spelled before a u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _kept(value: Any) -> Any:
    """What an effect gives, when a row can keep it. Raises TypeError or ValueError, which are the effect's own fault."""
    if value is not _END and _NUL.search(json.dumps(value, allow_nan=False)):
        raise ValueError("a text with the character U+0000, which PostgreSQL does not keep")
    return value


class _EffectFailed(Exception):
    """An effect raised something, while the job's increment was this one."""

    def __init__(self, error: Exception, increment: int) -> None:
        refused = isinstance(error, Refuse)
        super().__init__(f"refused: {error}" if refused else f"{type(error).__name__}: {error}")
        self.outcome = MessageOutcome.REFUSED if refused else MessageOutcome.FAILED
        self.increment = increment


class _Blamed:
    """What is raised in here is the effect's, and costs its own log; what is raised elsewhere is the worker's. So is a right that
    Kafka does not give it, whoever writes.
    """

    def __init__(self, increment: int) -> None:
        self._increment = increment

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, Refused):
            raise _EffectFailed(error, self._increment) from error
