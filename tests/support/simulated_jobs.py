"""Queue and rows of jobs in memory, that promise what those in Kafka and Postgres do and no more; a test moves their clock.

The queue delivers as badly as it may: in any order, several times, and again to somebody else while the first is still at it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from onefold.jobs.protocols import Done, Job, Message, PendingRow, Place


class Key(NamedTuple):
    """By which a job is known."""

    queue: str
    log_id: str
    place: Place


def key_of(job: Job) -> Key:
    """The key of a job."""
    return Key(job.queue, job.log_id, job.place)


@dataclass(frozen=True)
class _Row:
    shown: PendingRow
    modified: float


class SimulatedPending:
    """Rows in memory. What is written goes through JSON, as in Postgres.

    Attributes:
        entered: the jobs that were entered as done, in that order.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows: dict[Key, _Row] = {}
        self._done: dict[Key, Done] = {}
        self.entered: list[Job] = []

    def add(self, job: Job) -> None:
        """Insert its row, if there is none."""
        if key_of(job) not in self._rows:
            self._put(PendingRow(job, 0, False, 0, None, "", 0.0))

    def find(self, job: Job) -> PendingRow | None:
        """Its row."""
        row = self._rows.get(key_of(job))
        return replace(row.shown, quiet_s=self._clock() - row.modified) if row else None

    def earlier(self, job: Job) -> PendingRow | None:
        """The first row of the same log, when its place is an earlier one."""
        before = [key for key in self._of_log(job) if key.place < job.place]
        return self.find(self._rows[min(before)].shown.job) if before else None

    def following(self, job: Job) -> Job | None:
        """The job of the first row of the same log with a later place."""
        later = [key for key in self._of_log(job) if key.place > job.place]
        return self._rows[min(later)].shown.job if later else None

    def claim(self, row: PendingRow, timeout_s: float) -> int | None:
        """Its increment, now that it is ours; None: it is active and not timed out, or the row is not as it was seen."""
        now = self._seen(row)
        if now is None or (now.active and now.quiet_s < timeout_s):
            return None
        return self._put(replace(now, active=True, increment=now.increment + 1))

    def checkpoint(self, job: Job, increment: int, state: Any) -> int | None:
        """The next increment; None: it is not ours any more."""
        row = self._mine(job, increment)
        return self._put(replace(row, state=_as_json(state), increment=increment + 1)) if row else None

    def release(self, job: Job, increment: int, *, reason: str = "") -> bool:
        """Give it up, so that anybody may claim it; with a reason it is deferred, and counted in `retries`."""
        row = self._mine(job, increment)
        if row is not None:
            self._put(replace(row, active=False, retries=row.retries + bool(reason), reason=reason))
        return row is not None

    def defer(self, row: PendingRow, reason: str) -> bool:
        """Count a try that was not even begun; only of a row that is as it was seen."""
        now = self._seen(row)
        if now is None or now.active:
            return False
        self._put(replace(now, retries=now.retries + 1, reason=reason))
        return True

    def done(self, job: Job) -> Done | None:
        """What came of it, when it is done."""
        return self._done.get(key_of(job))

    def newest_done(self, job: Job) -> Done | None:
        """The last one of its log that is done and comes before it."""
        queue, log_id, place = key_of(job)
        before = [key for key in self._done if key.log_id == log_id and key.queue == queue and key.place < place]
        return self._done[max(before)] if before else None

    def finish(self, job: Job, increment: int, result: Any) -> bool:
        """Write that it is done, while its row is still ours. Again: nothing, and True while that holds."""
        if self._mine(job, increment) is None:
            return False
        if key_of(job) not in self._done:
            self._done[key_of(job)] = Done(job.place, _as_json(result))
            self.entered.append(job)
        return True

    def remove(self, job: Job, increment: int | None = None) -> bool:
        """Delete its row: with an increment only while it is ours, without one only when the job is done."""
        allowed = self._mine(job, increment) is not None if increment is not None else key_of(job) in self._done
        return allowed and self._rows.pop(key_of(job), None) is not None

    def _put(self, row: PendingRow) -> int:
        self._rows[key_of(row.job)] = _Row(row, self._clock())
        return row.increment

    def _of_log(self, job: Job) -> list[Key]:
        queue, log_id, _ = key_of(job)
        return [key for key in self._rows if key.log_id == log_id and key.queue == queue]

    def _seen(self, row: PendingRow) -> PendingRow | None:
        now = self.find(row.job)
        return now if now is not None and now.increment == row.increment else None

    def _mine(self, job: Job, increment: int) -> PendingRow | None:
        now = self.find(job)
        return now if now is not None and now.active and now.increment == increment else None


@dataclass
class _Delivery:
    job: Job
    visible_at: float
    receipt: int = 0


class SimulatedQueue:
    """A queue of which several workers take. What is taken is taken from its worker again after `lease_s`.

    Args:
        random: decides which of the visible messages comes next.
        wait: called when nothing is visible, with the seconds that may be waited.
    """

    def __init__(
        self, clock: Callable[[], float], random: Random, wait: Callable[[float], None], lease_s: float = 60.0
    ) -> None:
        self._clock = clock
        self._random = random
        self._wait = wait
        self._lease_s = lease_s
        self._deliveries: list[_Delivery] = []
        self._receipts = 0

    @property
    def left(self) -> int:
        """How many messages are not acknowledged."""
        return len(self._deliveries)

    def put(self, job: Job) -> None:
        """Add a job (again)."""
        self._deliveries.append(_Delivery(job, self._clock()))

    def receive(self, timeout_s: float) -> Message | None:
        """One of those that are visible; else None, after the whole time."""
        now = self._clock()
        visible = [one for one in self._deliveries if one.visible_at <= now]
        if not visible:
            self._wait(timeout_s)
            return None
        chosen = self._random.choice(visible)
        self._receipts += 1
        chosen.visible_at, chosen.receipt = now + self._lease_s, self._receipts
        return Message(chosen.job, self._receipts)

    def hide(self, message: Message, seconds: float) -> None:
        """Deliver it again after so many seconds; nothing when it was delivered to somebody else meanwhile."""
        for one in self._of(message):
            one.visible_at = self._clock() + seconds

    def acknowledge(self, message: Message) -> None:
        """Do not deliver it again; nothing when it was delivered to somebody else meanwhile."""
        for one in self._of(message):
            self._deliveries.remove(one)

    def keep_alive(self) -> None:
        """Nobody is taken for dead here but by the lease."""

    def _of(self, message: Message) -> list[_Delivery]:
        return [one for one in self._deliveries if one.receipt == message.receipt]


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
