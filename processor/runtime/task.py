"""One task: one partition of the inputs, its states, its session. Here is the cycle: poll, compute, decide, apply."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec, Identity, Session, Write
from onefold.processor.core.errors import Abortable, Refused, TooMuch
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Change, Counts, Record
from onefold.processor.runtime.batch_limit import BatchLimit, Quarantine
from onefold.processor.runtime.changelog import QUARANTINE_KEY, Progress, behind
from onefold.processor.runtime.compute import Compute
from onefold.processor.runtime.every import Every
from onefold.processor.runtime.figures import Done
from onefold.processor.runtime.keeping import Keeping, Standing
from onefold.processor.runtime.store import DiskStore, Store
from onefold.processor.runtime.transact import TopicIds, Transact

# How long a task waits for a first record before it looks at everything else, and whether it should end.
WAIT_S = 0.1
# Three questions to the broker, 5 ms together.
CHECK_EVERY_S = 1.0


class Task:
    """Folds one partition. Not safe to share between threads.

    Args:
        step: called with the name of each step before the next is taken; tests stop a task there.
        beat: called while a long restore goes on, so that a watchdog knows it does.
        compute_lock: held while a task computes, so that tasks of one process compute one after the other. Python's own lock
            would let them take turns every 5 ms, which costs half of the throughput; waiting for the broker is outside.
            A record that is folded alone has it until it is committed: nobody else's crash is to be counted against it.
        check_every_s: how often the inputs are asked whether they are still the same topics.
        take_back: takes the task from a decision log (`Publisher.take_back`).
        keeping: where its states are. None: in memory.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        topology: Topology,
        session: Session,
        codec: Codec,
        step: Callable[[str], None] = lambda name: None,
        beat: Callable[[], None] = lambda: None,
        compute_lock: AbstractContextManager[Any] | None = None,
        check_every_s: float = CHECK_EVERY_S,
        take_back: Callable[[], object] | None = None,
        keeping: Keeping | None = None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.topology = topology
        self._session = session
        self._codec = codec
        self._compute = Compute(topology, codec, session)
        self._transact = Transact(session, topology.changelog, session.partition, step)
        self._step = step
        self._beat = beat
        self._clock = clock
        self._check = Every(check_every_s, clock)
        self._take_back = take_back
        self._compute_lock = compute_lock or nullcontext()
        self._keeping = keeping or Keeping(topology, codec, session.partition, beat=beat)
        self.store: Store | DiskStore = Store()
        self.progress = Progress()
        self.done = Done()
        self._ends: Mapping[str, Identity] | None = None
        self._writing = 0
        self._limit = BatchLimit(self._write_quarantine)

    def open(self) -> None:
        """Take the task over: fence, restore up to the high watermark, check that the logs are the same logs.

        Raises:
            Refused: an input topic is not the one that was read before, or lost what comes next.
        """
        self._session.open()
        self._step("after_open")
        restored = self._keeping.restore(self._session)
        if restored.progress.decided_in is not None:
            if self._take_back is None:
                raise Refused(
                    Code.REPLICAS_CHANGED,
                    f"{self.topology.name} has replicas: its task {self._session.partition} is decided in a log",
                )
            self._take_back()
            restored = self._keeping.restore(self._session)
        self._step("after_restore")
        self.store = restored.store
        identities = self._session.identities()
        self.progress = restored.progress.checked(identities)
        self._session.seek(self.progress.offsets_next)
        self._limit.quarantine = restored.quarantine
        self._limit.open(identities)

    @property
    def kept(self) -> Standing:
        """Where its states are, and why."""
        return self._keeping.standing

    @property
    def quarantine(self) -> Quarantine:
        """How careful it is."""
        return self._limit.quarantine

    @property
    def score(self) -> None:
        """No decisions are won: it is the only one that makes them."""
        return None

    @property
    def unpublished_since(self) -> None:
        """What is committed can be read."""
        return None

    @property
    def lag(self) -> int | None:
        """How many offsets of its inputs are not folded, by where they ended when it looked last."""
        return behind(self.progress, self._ends)

    def caught_up(self) -> bool:
        """Whether all is folded that was there when the task was opened."""
        return self._limit.caught_up(self.progress.offsets_next)

    def turn(self) -> int:
        """One cycle. Returns how many records it folded."""
        records = self._session.poll(self._limit.records_max, WAIT_S)
        polled_at = self._clock()
        if not records:
            self._limit.idle()
            self._rest()
            return 0
        topic_ids = self._session.ask_topic_ids()
        self._same_logs()
        try:
            changes, needed = self._make_true(records, topic_ids)
        except TooMuch as reason:
            self._limit.too_large(records, str(reason))
            raise
        at = self._session.progress_next
        self.store = self._keeping.apply(self.store, changes, needed, at, self.progress, self.quarantine)
        self._step("after_apply")
        took_s = self._clock() - polled_at
        self._limit.committed(len(records), took_s, self.progress.offsets_next)
        self.done.took_s.append(took_s)
        self.done.written.append(self._writing)
        self._limit.relax(self.progress.offsets_next)
        return len(records)

    def _make_true(
        self, records: Sequence[Record], topic_ids: TopicIds
    ) -> tuple[Mapping[str, Change], Sequence[Write]]:
        """Process and commit the records, while no other task computes if one is tried alone. Returns what is to be kept."""
        if self._limit.was_too_large(records):
            # The cluster takes a transaction now: if this record fails once more, it is not because the cluster is away.
            self._write_quarantine(self.quarantine)
        rejected = self._limit.rejected(records)
        if self._limit.isolating and not rejected:
            before = self.quarantine
            with self._compute_lock:
                self._limit.attempt(records[0])
                try:
                    changes, needed, progress = self._prepare(records, {}, topic_ids)
                    self._commit(progress)
                except Abortable:
                    self._limit.withdraw(before)
                    raise
        else:
            with self._compute_lock:
                changes, needed, progress = self._prepare(records, rejected, topic_ids)
            self._commit(progress)
        return changes, needed

    def _prepare(
        self, records: Sequence[Record], rejected: Mapping[Record, str], topic_ids: TopicIds
    ) -> tuple[Mapping[str, Change], Sequence[Write], Progress]:
        """Fold them, and write what comes of it: all but the commit.

        What was written goes with this call, but for the states that go to disk: the next task's transaction takes its
        memory, warm, while this one is waiting for its commit. Kept until then it costs 3 % of the throughput.
        """
        prepared = self._compute.prepare(self.store, self.progress, records, rejected)
        self._writing = len(prepared.writes)
        self._write(chain(prepared.writes, prepared.states), prepared.progress, topic_ids)
        return prepared.changes, self._keeping.needed(prepared.states), prepared.progress

    def close(self) -> None:
        """Leave in good order; the next owner need not be careful."""
        try:
            self._limit.close()
        finally:
            self._keeping.close()
            self._session.close()

    def retreat(self) -> None:
        """Leave after a known trouble: what is open is aborted first, so that "clean" is all that is written."""
        self._session.abort()
        self.close()

    def abandon(self) -> None:
        """Leave after an error: what is open is aborted, and nothing more is written."""
        self._keeping.close()
        self._session.close()

    def _rest(self) -> None:
        """Nothing to read: markers at the end of an input are read too, so that a drained input has no lag."""
        self._same_logs()
        positions = self._session.positions()
        if any(offset > self.progress.offsets_next[topic] for topic, offset in positions.items()):
            progress = self.progress.advanced(positions, Counts())
            self._write([], progress, self._session.ask_topic_ids())
            self._commit(progress)
        self._limit.relax(self.progress.offsets_next)

    def _write_quarantine(self, quarantine: Quarantine) -> None:
        write: Write = (self.topology.changelog, self._session.partition, QUARANTINE_KEY, quarantine.encode(), None)
        try:
            self._write([write], self.progress)
            self._commit(self.progress)
        except TooMuch as error:
            # Two small records are not too much: it is no fault of the record that comes next.
            raise Abortable(error.code, str(error)) from error

    def _write(self, writes: Iterable[Write], progress: Progress, topic_ids: TopicIds | None = None) -> None:
        with self._rewinding():
            self._transact.write(writes, self.progress, progress, topic_ids)

    def _same_logs(self) -> None:
        """Look now and then whether the inputs still hold what comes next; every transaction looks whether it is them."""
        if self._check.is_due():
            self._ends = self._session.identities()
            self.progress.checked(self._ends)

    def _commit(self, progress: Progress) -> None:
        with self._rewinding():
            self._transact.commit()
        self.progress = progress

    @contextmanager
    def _rewinding(self) -> Iterator[None]:
        """When the transaction is lost: abort it, and read again from the progress."""
        try:
            yield
        except Abortable:
            self._session.abort()
            self._session.seek(self.progress.offsets_next)
            raise
