"""A task: one partition of the inputs, the states, and the cycle of reading, computing, deciding and applying.

A `Decider` decides: by Kafka transactions (`transaction_decider`), or by a decision log that the task shares with its replicas
(`log_decider`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from onefold.processor.core.abc import Codec, Inputs, PartitionIdentity, Write
from onefold.processor.core.errors import Abortable, TooMuch
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Change, Record, RecordCounts
from onefold.processor.runtime.batch_limit import BATCH, BatchLimit, Quarantine
from onefold.processor.runtime.changelog import TaskProgress, behind, changes_of
from onefold.processor.runtime.compute import Compute, Prepared
from onefold.processor.runtime.input_buffer import InputBuffer
from onefold.processor.runtime.interval import Every
from onefold.processor.runtime.state_manager import StateLocation, StateManager
from onefold.processor.runtime.state_store import DiskStateStore, MemoryStateStore
from onefold.processor.runtime.task_metrics import TaskMetrics

# A check costs three requests to the broker.
CHECK_EVERY_S = 1.0

#: Waits for the cluster's answer, and returns the topic id of each input.
TopicIds = Callable[[], Mapping[str, str]]


class Decided(NamedTuple):
    """The next accepted transaction of the task.

    Attributes:
        states: the key and value of each changelog record. None: the transaction is this task's last proposal.
        at: the changelog offset after the transaction. None: unknown, or the transaction is not in the changelog yet.
    """

    states: Sequence[tuple[bytes, bytes | None]] | None = None
    at: int | None = None


class Decider(ABC):
    """Decides which proposed transactions of one task are accepted, and in which order. Not safe to share between threads.

    Attributes:
        progress: the progress after the last decision that `decisions` yielded.
        quarantine: the quarantine of the task's predecessor, after the restore.
        done: the metrics that the driver has not collected yet.
        records_max: the maximum number of records in a transaction.
        wait_s: how long a task waits for a first record in each cycle.
        unpublished_since: the time since which a decision is unpublished. None: all decisions are published.
        restoring: whether decisions from before the start remain to be applied.
        score: the numbers of accepted proposals since the start: of this replica, and of all replicas. None: no replicas.
    """

    records_max, wait_s = BATCH[0], 0.1
    restoring = False
    score: tuple[int, int] | None = None
    unpublished_since: float | None = None

    def __init__(self) -> None:
        self.progress = TaskProgress()
        self.quarantine = Quarantine()
        self.done = TaskMetrics()

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether the last proposal has no outcome yet."""

    @abstractmethod
    def open(self, keeping: StateManager) -> MemoryStateStore | DiskStateStore:
        """Take the task over. Returns the states.

        Raises:
            Refused: an input topic was recreated, or has lost the next records.
        """

    def start(self) -> None:  # noqa: B027 - optional
        """Start, after the task has applied all decisions from before the start."""

    @abstractmethod
    def is_ready(self, quarantine: Quarantine) -> bool:
        """Whether the task may propose a transaction now.

        Args:
            quarantine: the record to write, if the last transaction was too large. The next proposal waits until the cluster
                has accepted the quarantine: no record is blamed for an unavailable cluster.
        """

    def holds_off(self) -> bool:
        """Whether to leave the next proposal to the peers for now. Called when records wait to be proposed."""
        return False

    @abstractmethod
    def propose(self, prepared: Prepared, topic_ids: TopicIds) -> None:
        """Propose the next transaction.

        Args:
            topic_ids: returns the inputs' topic ids as of after the last record. Consumers continue in a recreated topic
                without an error. With these ids, records of a recreated topic are never committed.

        Raises:
            Abortable: the transaction is lost, and may be proposed again.
            TooMuch: the transaction is lost, maybe because of the size.
            Refused: an input topic was recreated.
        """

    @abstractmethod
    def decisions(self) -> Iterator[Decided]:
        """Yield the next decisions. Raises as `propose`."""

    @abstractmethod
    def write_quarantine(self, quarantine: Quarantine) -> None:
        """Write the quarantine for the next owner of the task."""

    def check_log(self) -> None:  # noqa: B027 - optional
        """Raise `Corrupted` if the progress names another decision log."""

    @abstractmethod
    def stop(self) -> None:
        """Abort an open transaction. After the call, the task writes nothing but a quarantine."""

    @abstractmethod
    def close(self) -> None:
        """Close the clients, with those of the inputs."""


class Task:
    """Processes one partition. Not safe to share between threads.

    Args:
        inputs: the task's partition of every input.
        step: called with the name of each step that the task reaches; tests crash a task there.
        beat: called while a long restore makes progress, for the watchdog.
        compute_lock: held during a computation, so that the tasks of a process compute one after the other. The frequent
            switches of Python's global lock would halve the throughput. Tasks wait for the broker without the lock.
            An isolated record keeps the lock until the outcome: a crash in another task must not count against the record.
        check_every_s: the interval of the checks of the input topics.
        keeping: the manager of the states. None: states are in memory.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        topology: Topology,
        inputs: Inputs,
        codec: Codec,
        decider: Decider,
        step: Callable[[str], None] = lambda name: None,
        beat: Callable[[], None] = lambda: None,
        compute_lock: AbstractContextManager[Any] | None = None,
        check_every_s: float = CHECK_EVERY_S,
        keeping: StateManager | None = None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.topology = topology
        self.decider = decider
        self.store: MemoryStateStore | DiskStateStore = MemoryStateStore()
        self.done = decider.done
        self._inputs = inputs
        self._codec = codec
        self._compute = Compute(topology, codec, inputs)
        self._step = step
        self._beat = beat
        self._clock = clock
        self._check = Every(check_every_s, clock)
        self._compute_lock = compute_lock or nullcontext()
        self._keeping = keeping or StateManager(topology, codec, inputs.partition, beat=beat)
        self._buffer = InputBuffer(inputs, decider.wait_s)
        self._limit = BatchLimit(decider.write_quarantine, decider.records_max)
        self._ends: Mapping[str, PartitionIdentity] | None = None
        self._read_at = clock()
        # The last proposal: the records, the changed states, and the states' changelog records that `StateManager.apply` needs.
        self._proposed: Sequence[Record] = ()
        self._changes: Mapping[str, Change] = {}
        self._needed: Sequence[Write] = ()

    @property
    def progress(self) -> TaskProgress:
        """The progress as of the last applied decision."""
        return self.decider.progress

    @property
    def kept(self) -> StateLocation:
        """The location of the states, and the reason."""
        return self._keeping.standing

    @property
    def quarantine(self) -> Quarantine:
        """The present quarantine."""
        return self._limit.quarantine

    @property
    def lag(self) -> int | None:
        """The number of undecided input offsets, as of the last check of the input topics. None before the first check."""
        return behind(self.progress, self._ends)

    def caught_up(self) -> bool:
        """Whether all records from before the task's opening are decided."""
        return self._limit.caught_up(self.progress.offsets_next)

    def open(self) -> None:
        """Take the task over: restore the states, and apply all decisions from before the start. Raises as `Decider.open`."""
        self.store = self.decider.open(self._keeping)
        while self.decider.restoring:
            self._apply(self.decider.decisions())
            self._beat()
        self._inputs.seek(self.progress.offsets_next)
        self._limit.quarantine = self.decider.quarantine
        self._limit.open(self._inputs.identities())
        self.decider.start()

    def turn(self) -> int:
        """Run one cycle. Returns the number of decided records."""
        before = sum(self.progress.counts)
        try:
            self._apply(self.decider.decisions())
            if self.decider.is_ready(self.quarantine):
                self._propose_next()
                self._apply(self.decider.decisions())
        except TooMuch as reason:
            # Counted once: a decision log may report two failed appends in succession.
            proposed, self._proposed = self._proposed, ()
            if proposed:
                self._limit.too_large(proposed, str(reason))
            raise
        self._limit.relax(self.progress.offsets_next)
        return sum(self.progress.counts) - before

    def close(self) -> None:
        """Close the task after a clean end, or an error that no record caused: the next owner needs no isolation."""
        self.decider.stop()
        try:
            self._limit.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the task after an error, without a further write. The last proposal may still be accepted."""
        self._keeping.close()
        self.decider.close()

    def _propose_next(self) -> None:
        """Propose the next records. Without records, propose the markers at the end of an input: a drained input has no lag."""
        at = self.progress.offsets_next
        self._buffer.read(at, self._limit.records_max)
        self._read_at = self._clock()
        self._same_logs()
        records, ends = self._buffer.records[: self._limit.records_max], self._buffer.markers_after(at)
        if not records:
            self._limit.idle()
        if (records or ends) and not self.decider.holds_off():
            topic_ids = self._inputs.ask_topic_ids()
            if records:
                self._propose_records(records, topic_ids)
            else:
                self._propose((), Prepared([], [], {}, self.progress.advanced(ends or {}, RecordCounts())), topic_ids)

    def _propose_records(self, records: Sequence[Record], topic_ids: TopicIds) -> None:
        rejected = self._limit.rejected(records)
        alone = self._limit.isolating and not rejected
        before = self.quarantine
        with self._compute_lock:
            if alone:
                self._limit.attempt(records[0])
            try:
                prepare = self._compute.prepare
                self._propose(records, prepare(self.store, self.progress, records, rejected), topic_ids)
                while alone and self.decider.pending:
                    self._apply(self.decider.decisions())
            except Abortable:
                if alone:
                    self._limit.withdraw(before)
                raise

    def _propose(self, records: Sequence[Record], prepared: Prepared, topic_ids: TopicIds) -> None:
        """Propose a transaction, and keep only the part that applying needs.

        The bytes of the other writes are freed with this call. The next task reuses the memory, still in the CPU's cache.
        """
        self._proposed, self._changes, self._needed = records, prepared.changes, self._keeping.needed(prepared.states)
        self.decider.propose(prepared, topic_ids)

    def _apply(self, decisions: Iterable[Decided]) -> None:
        """Apply the accepted states, without computing again: a handler may depend on a random number or a clock."""
        found = False
        for states, at in decisions:
            found = True
            changes, needed = (self._changes, self._needed) if states is None else self._changed(states)
            self.store = self._keeping.apply(self.store, changes, needed, at, self.progress, self.quarantine)
            self._step("after_apply")
            if states is None and self._proposed:
                took_s = self._clock() - self._read_at
                self._limit.committed(len(self._proposed), took_s, self.progress.offsets_next)
                self.done.took_s.append(took_s)
        if found:
            # Once for all decisions: a task that was paused applies many, and each drop would scan a full buffer.
            self._buffer.drop(self.progress.offsets_next)
        if not self.decider.pending:
            self._proposed, self._changes, self._needed = (), {}, ()

    def _changed(self, states: Sequence[tuple[bytes, bytes | None]]) -> tuple[Mapping[str, Change], Sequence[Write]]:
        last = dict(states)
        partition = self._inputs.partition
        needed: list[Write] = [("", partition, *state, None) for state in self._keeping.needed([*last.items()])]
        return changes_of(last, self.topology, self._codec), needed

    def _same_logs(self) -> None:
        """Check at intervals that the inputs still hold the next records. Each transaction checks the topic ids besides."""
        if self._check.is_due():
            self._ends = self._inputs.identities()
            self.progress.checked(self._ends)
            self.decider.check_log()
