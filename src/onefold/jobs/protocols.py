"""What a worker works with: a queue of jobs, a table of those that are pending, a store of objects, and the effect itself.

A job is a record of one of a pipeline's output topics. It names a *log* and a place in it; jobs of one log are done in the
order of their places, jobs of different logs in any order. It may arrive twice, late, out of order, and at two workers at
once. What makes that harmless is in three places: the rows of `JobRows`, which are written under a condition only; effects
that give the same objects however often they are done; and `done`, which says what need not be done again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Place(NamedTuple):
    """Where in its log a job stands; places are compared as pairs."""

    segment: int
    entry: int


@dataclass(frozen=True)
class Job:
    """One thing that has to be done.

    Attributes:
        queue: the topic that it was put into.
        log_id: what it is about; jobs with the same one are done in order.
        place: where in that log.
        value: the record as it was decoded, with fields that are the effect's own. As plain JSON data.
    """

    queue: str
    log_id: str
    place: Place
    value: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class PendingRow:
    """A job that is known and not done, as its row stands.

    Attributes:
        job: the job.
        retries: how often it was deferred.
        active: whether a worker has claimed it, and has not given it up.
        increment: grows with each claim and each checkpoint; every write names the one it saw.
        state: the newest checkpoint, plain JSON data; None before the first.
        reason: why it was deferred the last time, or "".
        quiet_s: seconds since it was last written, by the database's clock.
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
        """Whether no worker has met the job yet: whoever knew of it may have died before it was in the queue."""
        return self.increment == 0 and self.retries == 0


@dataclass(frozen=True)
class Done:
    """A job that is done, and what came of it: plain JSON data that `Effect.finish` returned."""

    place: Place
    result: Any


class JobRows(Protocol):
    """The rows of jobs that are not done, and of those that are. Every write has a condition, and says whether it held."""

    def add(self, job: Job) -> None:
        """Insert its row, if there is none."""

    def find(self, job: Job) -> PendingRow | None:
        """Its row."""

    def earlier(self, job: Job) -> PendingRow | None:
        """The first row of the same log, when its place is an earlier one."""

    def following(self, job: Job) -> Job | None:
        """The job of the first row of the same log with a later place."""

    def claim(self, row: PendingRow, timeout_s: float) -> int | None:
        """Its increment, now that it is ours; None: it is active and not timed out, or the row is not as it was seen."""

    def checkpoint(self, job: Job, increment: int, state: Any) -> int | None:
        """The next increment; None: it is not ours any more."""

    def release(self, job: Job, increment: int, *, reason: str = "") -> bool:
        """Give it up, so that anybody may claim it; with a reason it is deferred, and counted in `retries`."""

    def defer(self, row: PendingRow, reason: str) -> bool:
        """Count a try that was not even begun; only of a row that is as it was seen."""

    def done(self, job: Job) -> Done | None:
        """What came of it, when it is done."""

    def newest_done(self, job: Job) -> Done | None:
        """The last one of its log that is done and comes before it."""

    def finish(self, job: Job, increment: int, result: Any) -> bool:
        """Write that it is done, while its row is still ours. Again: nothing, and True while that holds."""

    def remove(self, job: Job, increment: int | None = None) -> bool:
        """Delete its row: with an increment only while it is ours, without one only when the job is done."""


@dataclass(frozen=True)
class Message:
    """A job as it was delivered; `receipt` is the queue's own, to say which delivery is meant."""

    job: Job
    receipt: Any


class Queue(Protocol):
    """A queue that delivers each job at least once, and again until it is acknowledged."""

    def receive(self, timeout_s: float) -> Message | None:
        """The next one that is visible, waiting up to so many seconds. None: there is none."""

    def put(self, job: Job) -> None:
        """Add a job (again). On return the queue has it."""

    def hide(self, message: Message, seconds: float) -> None:
        """Deliver it again after so many seconds."""

    def acknowledge(self, message: Message) -> None:
        """Do not deliver it again."""

    def keep_alive(self) -> None:
        """Called between two steps of a long job, so that nobody takes this worker for dead."""


class Mark(NamedTuple):
    """That an object may be discarded unless something names it; since when, by the store's clock."""

    name: str
    since: datetime


class Missing(Exception):
    """There is no such object."""


class Objects(Protocol):
    """A store of objects that never change. A name is a relative path of [a-z0-9/]."""

    def put(self, name: str, content: bytes) -> bool:
        """Write it, whole or not at all, durable on return. False: it was there, and nothing was written."""

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        """The same for what does not fit into memory; gives its size in bytes."""

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Its bytes from `start` up to `end`. Raises `Missing`."""

    def size(self, name: str) -> int | None:
        """In bytes; None: there is no such object."""

    def delete(self, name: str) -> None:
        """Also of what is not there."""

    def ids(self, prefix: str = "") -> Iterator[str]:
        """Of all objects whose name begins so, sorted; marks are no objects."""

    def mark(self, name: str) -> None:
        """Set its expiry mark; the object need not be there yet. Again: the mark is as old as the newest call."""

    def unmark(self, name: str) -> None:
        """Remove its mark; also when there is none."""

    def marks(self) -> Iterator[Mark]:
        """All of them, oldest or not, in any order."""


class Refuse(Exception):
    """An effect says that this job can never be done, and why. It stays pending, with that sentence, until a person acts."""


class Effect(Protocol):
    """What the jobs of a queue do. It may be run twice, by two workers at once, and be cut off anywhere.

    Attributes:
        ordered: whether the jobs of a log wait for one another.
    """

    ordered: bool

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        """The jobs of its log that come after `newest` and before it; None: that cannot be known yet."""

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        """Do the work. Each state that is yielded is a checkpoint, from which another worker goes on; plain JSON data."""

    def finish(self, job: Job, state: Any) -> Any:
        """Make the outcome known, with the last state that was yielded (None: none was); gives the result, plain JSON data."""

    def stands(self, job: Job, result: Any) -> bool:
        """Whether all that this job once did is still there; asked when jobs are requeued."""


@runtime_checkable
class StartsOver(Protocol):
    """What an effect has beside the methods of `Effect` when its pipeline may be reset, by `onefold reset`. All its jobs
    are forgotten then, and workers do the jobs that the processor writes after the reset, also equal ones.
    """

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """What `start_over` would do, and what will be done once more: a sentence each, for who is asked whether to go on."""

    def start_over(self, *, inputs: bool) -> None:
        """Remove what its jobs have made outside of Kafka and PostgreSQL. May be cut off anywhere, and is called again then. No
        worker runs meanwhile, unless the reset's session has ended: the store of `Context.objects()` is asked for that by itself,
        and for anything else ask `Context.still()` right before each thing that is removed.

        Args:
            inputs: the pipeline's inputs are deleted too.
        """
