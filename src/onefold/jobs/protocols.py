"""The interfaces of a worker: the queue of jobs, the rows of pending and done jobs, the store of objects, and the effect.

A job is a record in one of a pipeline's output topics, with a *log* and a place in the log. Workers do the jobs of one log in
the order of their places, and jobs of different logs in any order. A job may arrive twice, late, out of order, and at two
workers at the same time. Three properties make repeats harmless:

- Every write to the rows of `JobRows` has a condition.
- An effect creates the same objects in every run.
- `done` has the finished jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Place(NamedTuple):
    """The position of a job in its log. Places compare as pairs."""

    segment: int
    entry: int


@dataclass(frozen=True)
class Job:
    """A side effect to do.

    Attributes:
        queue: the queue's topic.
        log_id: the log. Workers do the jobs of a log in order.
        place: the position in the log.
        value: the decoded record, including the effect's own fields, as plain JSON data.
    """

    queue: str
    log_id: str
    place: Place
    value: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class PendingRow:
    """The row of a pending job.

    Attributes:
        job: the job.
        retries: the number of deferrals.
        active: whether a worker has claimed and not released the job.
        increment: the version for optimistic locking, increased by each claim and each checkpoint. Each update requires the
            version read before.
        state: the newest checkpoint, plain JSON data; None before the first.
        reason: the reason of the last deferral, or "".
        quiet_s: seconds since the last write of the row, by the database's clock.
    """

    job: Job
    retries: int
    active: bool
    increment: int
    state: Any
    reason: str
    quiet_s: float

    @property
    def unmet(self) -> bool:
        """Whether no worker has attempted the job. Its message may be missing after a crash before the write to the queue."""
        return self.increment == 0 and self.retries == 0


@dataclass(frozen=True)
class Done:
    """A finished job with the result of `Effect.finish`, plain JSON data."""

    place: Place
    result: Any


class JobRows(Protocol):
    """The rows of pending and done jobs. Every write has a condition, and its result shows whether the condition held."""

    def add(self, job: Job) -> None:
        """Insert the pending row, unless the row exists."""

    def find(self, job: Job) -> PendingRow | None:
        """The pending row of the job."""

    def earlier(self, job: Job) -> PendingRow | None:
        """The first pending row of the same log with an earlier place."""

    def following(self, job: Job) -> Job | None:
        """The first pending job of the same log with a later place."""

    def claim(self, row: PendingRow, timeout_s: float) -> int | None:
        """Claim the job, and return the new increment. None: the job is active and not timed out, or the row has changed."""

    def checkpoint(self, job: Job, increment: int, state: Any) -> int | None:
        """Store a state, and return the next increment. None: another worker has claimed the job."""

    def release(self, job: Job, increment: int, *, reason: str = "") -> bool:
        """Release the job for any worker. With a reason, the job counts as deferred in `retries`."""

    def defer(self, row: PendingRow, reason: str) -> bool:
        """Count a deferral of an unclaimed job. The condition is an unchanged row."""

    def done(self, job: Job) -> Done | None:
        """The job's result, if the job is done."""

    def newest_done(self, job: Job) -> Done | None:
        """The last done job of the same log with an earlier place."""

    def finish(self, job: Job, increment: int, result: Any) -> bool:
        """Record the job as done while the worker holds the claim. A repeat changes nothing, and returns True."""

    def remove(self, job: Job, increment: int | None = None) -> bool:
        """Delete the pending row. With an increment: only while the worker holds the claim. Else: only if the job is done."""


@dataclass(frozen=True)
class Message:
    """A delivered job. `receipt` identifies the delivery for the queue."""

    job: Job
    receipt: Any


class Queue(Protocol):
    """A queue with at-least-once delivery. The queue delivers a job repeatedly until the acknowledgement."""

    def receive(self, timeout_s: float) -> Message | None:
        """The next visible message, after a wait of at most `timeout_s`. None: no message is visible."""

    def put(self, job: Job) -> None:
        """Add a job, possibly again. On return, the queue has durably stored the job."""

    def hide(self, message: Message, seconds: float) -> None:
        """Deliver the message again after `seconds`."""

    def acknowledge(self, message: Message) -> None:
        """Stop delivering the message."""

    def keep_alive(self) -> None:
        """Keep the worker in its group. Called between two steps of a long job."""


class Mark(NamedTuple):
    """The expiration marker of an object, with the time of the marker by the store's clock.

    Garbage collection may discard a marked object unless an entry references the object.
    """

    name: str
    since: datetime


class Missing(Exception):
    """The store has no object of the name."""


class ReadableObjects(Protocol):
    """The store of objects of jobs (`ONEFOLD_OBJECTS`), without writes. The calls block."""

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The content of an object from byte `start` to byte `end`, exclusive. Raises Missing."""

    def size(self, name: str) -> int | None:
        """The size of an object in bytes, or None without the object."""


class Objects(ReadableObjects, Protocol):
    """A store of immutable objects. A name is a relative path of [a-z0-9/]."""

    def put(self, name: str, content: bytes) -> bool:
        """Write the object atomically and durably. False: the object exists already, and the call has written nothing."""

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        """Write an object too large for memory, as `put` does. Returns the size in bytes."""

    def delete(self, name: str) -> None:
        """Delete the object, if the object exists."""

    def ids(self, prefix: str = "") -> Iterator[str]:
        """The sorted names of all objects with the prefix, without expiration markers."""

    def mark(self, name: str) -> None:
        """Set the expiration marker, also of an object not written yet. A repeat renews the time of the marker."""

    def unmark(self, name: str) -> None:
        """Remove the expiration marker, if the marker exists."""

    def marks(self) -> Iterator[Mark]:
        """All expiration markers, in any order."""


class Refuse(Exception):
    """Raised by an effect for an impossible job, with the reason. The job stays pending with the reason until a person acts."""


class Effect(Protocol):
    """The implementation of a queue's jobs.

    An effect may run twice, in two workers at the same time, and may stop at any point.

    Attributes:
        ordered: whether the jobs of a log wait for earlier jobs.
    """

    ordered: bool

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        """The jobs of the log between `newest` and `job`. None: not known yet."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        """Do the work from the checkpoint `state`. Each yielded state is a checkpoint for the next worker, plain JSON data."""

    def finish(self, job: Job, state: Any) -> Any:
        """Publish the outcome, and return the result, plain JSON data. `state`: the last checkpoint, or None."""

    def stands(self, job: Job, result: Any) -> bool:
        """Whether all results of a done job still exist. Called by a requeue."""


@runtime_checkable
class StartsOver(Protocol):
    """The additional methods of an effect whose pipeline supports `onefold reset`.

    A reset deletes all jobs. Afterwards, workers do all new jobs of the processor, including jobs equal to deleted jobs.
    """

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """Describe the actions of `start_over`, and repeated side effects, a sentence each, for the reset's confirmation."""

    def start_over(self, *, inputs: bool) -> None:
        """Remove the results of the jobs outside of Kafka and PostgreSQL.

        After an interruption at any point, the reset calls the method again. No worker runs at the same time, unless the
        reset's session has ended. The store of `Context.objects()` checks the session before each write. For removals
        elsewhere, call `Context.still()` immediately before each removal.

        Args:
            inputs: the reset also deletes the pipeline's inputs.
        """
