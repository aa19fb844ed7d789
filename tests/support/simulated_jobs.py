"""Job queue and job rows in memory, with the guarantees of those in Kafka and PostgreSQL and no further ones. The test moves
the clock.

Deliveries are as bad as allowed: in any order, repeated, and to a second worker while the first still works.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from onefold.jobs.protocols import Done, Job, Message, PendingRow, Place


class Key(NamedTuple):
    """Identity of a job."""

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
    """Rows in memory. Values go through JSON, as in PostgreSQL.

    Attributes:
        entered: jobs entered as done, in order.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows: dict[Key, _Row] = {}
        self._done: dict[Key, Done] = {}
        self.entered: list[Job] = []

    def add(self, job: Job) -> None:
        """Insert the job's row, if missing."""
        if key_of(job) not in self._rows:
            self._put(PendingRow(job, 0, False, 0, None, "", 0.0))

    def find(self, job: Job) -> PendingRow | None:
        """The job's row."""
        row = self._rows.get(key_of(job))
        return replace(row.shown, quiet_s=self._clock() - row.modified) if row else None

    def earlier(self, job: Job) -> PendingRow | None:
        """The first row of the same log, if that row is earlier."""
        before = [key for key in self._of_log(job) if key.place < job.place]
        return self.find(self._rows[min(before)].shown.job) if before else None

    def following(self, job: Job) -> Job | None:
        """The job of the next later row of the same log."""
        later = [key for key in self._of_log(job) if key.place > job.place]
        return self._rows[min(later)].shown.job if later else None

    def claim(self, row: PendingRow, timeout_s: float) -> int | None:
        """Claim the row, and return the version. None: active without timeout, or changed since read."""
        now = self._seen(row)
        if now is None or (now.active and now.quiet_s < timeout_s):
            return None
        return self._put(replace(now, active=True, increment=now.increment + 1))

    def checkpoint(self, job: Job, increment: int, state: Any) -> int | None:
        """Store a checkpoint, and return the next version. None: another worker has the row."""
        row = self._mine(job, increment)
        return self._put(replace(row, state=_as_json(state), increment=increment + 1)) if row else None

    def release(self, job: Job, increment: int, *, reason: str = "") -> bool:
        """Release the row, so that any worker may claim it. A reason means a deferral, counted in `retries`."""
        row = self._mine(job, increment)
        if row is not None:
            self._put(replace(row, active=False, retries=row.retries + bool(reason), reason=reason))
        return row is not None

    def defer(self, row: PendingRow, reason: str) -> bool:
        """Count an attempt that did not begin; only for an unchanged row."""
        now = self._seen(row)
        if now is None or now.active:
            return False
        self._put(replace(now, retries=now.retries + 1, reason=reason))
        return True

    def done(self, job: Job) -> Done | None:
        """Result of a done job."""
        return self._done.get(key_of(job))

    def newest_done(self, job: Job) -> Done | None:
        """The last done job of the same log before this one."""
        queue, log_id, place = key_of(job)
        before = [key for key in self._done if key.log_id == log_id and key.queue == queue and key.place < place]
        return self._done[max(before)] if before else None

    def finish(self, job: Job, increment: int, result: Any) -> bool:
        """Enter the job as done, while the row is still claimed. A repetition changes nothing, and returns True while claimed."""
        if self._mine(job, increment) is None:
            return False
        if key_of(job) not in self._done:
            self._done[key_of(job)] = Done(job.place, _as_json(result))
            self.entered.append(job)
        return True

    def remove(self, job: Job, increment: int | None = None) -> bool:
        """Delete the row: with a version only while claimed, without one only if the job is done."""
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
    """A queue for several workers. A message not acknowledged within `lease_s` is delivered again.

    Args:
        random: picks the next visible message.
        wait: called with the allowed seconds when no message is visible.
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
        """Number of messages not acknowledged."""
        return len(self._deliveries)

    def put(self, job: Job) -> None:
        """Add a job, perhaps again."""
        self._deliveries.append(_Delivery(job, self._clock()))

    def receive(self, timeout_s: float) -> Message | None:
        """Receive a visible message; None after the whole timeout."""
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
        """Deliver the message again after some seconds, unless another worker has received the message."""
        for one in self._of(message):
            one.visible_at = self._clock() + seconds

    def acknowledge(self, message: Message) -> None:
        """Remove the message, unless another worker has received the message."""
        for one in self._of(message):
            self._deliveries.remove(one)

    def keep_alive(self) -> None:
        """Not needed: only the lease decides whether a worker is alive."""

    def _of(self, message: Message) -> list[_Delivery]:
        return [one for one in self._deliveries if one.receipt == message.receipt]


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
