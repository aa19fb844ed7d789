"""One task: one partition of the inputs, and its states. Here is the cycle: read, compute, decide, apply.

What decides is a `Decider`: Kafka transactions (`transact`), or a decision log that the task shares with its replicas
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

# Three questions to the broker, 5 ms together.
CHECK_EVERY_S = 1.0

#: What waits for the answer to the question which topics the inputs' names stand for.
TopicIds = Callable[[], Mapping[str, str]]


class Decided(NamedTuple):
    """One more transaction of the task that counts.

    Attributes:
        states: the key and value of its changelog records. None: it is the transaction that this task proposed last.
        at: the changelog offset behind it. None: not known, or the transaction is not in the changelog yet.
    """

    states: Sequence[tuple[bytes, bytes | None]] | None = None
    at: int | None = None


class Decider(ABC):
    """Decides which computed transactions of one task count, and in which order. Not safe to share between threads.

    Attributes:
        progress: after the last decision that `decisions` gave.
        quarantine: that of the task's predecessor, once the task is restored.
        done: what was written to other topics than the changelog.
        records_max: how many records a transaction may ever have.
        wait_s: how long a task waits for a first record before it looks at everything else.
        unpublished_since: since when a decision waits to be published. None: no decision does.
        restoring: whether there are more decisions from before the start.
        score: of the decisions since the start, how many the task has proposed, and how many there were. None: no replicas.
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
        """Whether the outcome of the last proposal is still to come."""

    @abstractmethod
    def open(self, keeping: StateManager) -> MemoryStateStore | DiskStateStore:
        """Take the task over. Returns the states.

        Raises:
            Refused: an input topic is not the one that was read before, or lost what comes next.
        """

    def start(self) -> None:  # noqa: B027 - most have nothing more to begin
        """Begin, after the task has applied all decisions from before the start."""

    @abstractmethod
    def is_ready(self, quarantine: Quarantine) -> bool:
        """Whether the task may propose a transaction now.

        Args:
            quarantine: to write, if the last transaction was too much: the next one is proposed when the cluster has taken this.
                So a record is not to blame for a cluster that is away.
        """

    def holds_off(self) -> bool:
        """Whether to leave the next decision to other replicas for now. Asked when there is something to propose."""
        return False

    @abstractmethod
    def propose(self, prepared: Prepared, topic_ids: TopicIds) -> None:
        """Propose the next transaction.

        Args:
            topic_ids: what the inputs' names stood for after the last record was read. Consumers go on in a topic that was
                deleted and made again as if nothing had happened; what they read there is never decided.

        Raises:
            Abortable: the transaction is lost, and may be proposed again. TooMuch: and its size may be why.
            Refused: an input is another topic now.
        """

    @abstractmethod
    def decisions(self) -> Iterator[Decided]:
        """The decisions that come next. Raises as `propose`."""

    @abstractmethod
    def write_quarantine(self, quarantine: Quarantine) -> None:
        """Write the quarantine where the next owner of the task finds it."""

    def check_log(self) -> None:  # noqa: B027 - most have none
        """Raises `Corrupted` when the decision log is not the one that the progress names."""

    @abstractmethod
    def stop(self) -> None:
        """Abort what is open, and begin nothing more but a quarantine."""

    @abstractmethod
    def close(self) -> None:
        """Leave, with the inputs."""


class Task:
    """Processes one partition. Not safe to share between threads.

    Args:
        inputs: the task's partition of every input.
        step: called with the name of each step before the next is taken; tests stop a task there.
        beat: called while a long restore goes on, so that a watchdog knows it does.
        compute_lock: held while a task computes, so that tasks of one process compute one after the other. Python's own lock
            would let them take turns every 5 ms, which costs half of the throughput; waiting for the broker is outside.
            A record that is tried alone has it until it is decided: nobody else's crash is to be counted against it.
        check_every_s: how often the inputs are asked whether they are still the same topics.
        keeping: where its states are. None: in memory.
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
        # What was proposed last: the records, the states that they change, and what of these goes to disk.
        self._proposed: Sequence[Record] = ()
        self._changes: Mapping[str, Change] = {}
        self._needed: Sequence[Write] = ()

    @property
    def progress(self) -> TaskProgress:
        """How far it is."""
        return self.decider.progress

    @property
    def kept(self) -> StateLocation:
        """Where its states are, and why."""
        return self._keeping.standing

    @property
    def quarantine(self) -> Quarantine:
        """How careful it is."""
        return self._limit.quarantine

    @property
    def lag(self) -> int | None:
        """How many offsets of its inputs are not decided, by where they ended when it looked last; None: it never has."""
        return behind(self.progress, self._ends)

    def caught_up(self) -> bool:
        """Whether all records are decided that were there when the task was opened."""
        return self._limit.caught_up(self.progress.offsets_next)

    def open(self) -> None:
        """Take the task over: restore its states, and apply all decisions from before the start. Raises as `Decider.open`."""
        self.store = self.decider.open(self._keeping)
        while self.decider.restoring:
            self._apply(self.decider.decisions())
            self._beat()
        self._inputs.seek(self.progress.offsets_next)
        self._limit.quarantine = self.decider.quarantine
        self._limit.open(self._inputs.identities())
        self.decider.start()

    def turn(self) -> int:
        """One cycle. Returns how many records were decided."""
        before = sum(self.progress.counts)
        try:
            self._apply(self.decider.decisions())
            if self.decider.is_ready(self.quarantine):
                self._propose_next()
                self._apply(self.decider.decisions())
        except TooMuch as reason:
            # Counted once: with a decision log the answers to two appends may come one after the other.
            proposed, self._proposed = self._proposed, ()
            if proposed:
                self._limit.too_large(proposed, str(reason))
            raise
        self._limit.relax(self.progress.offsets_next)
        return sum(self.progress.counts) - before

    def close(self) -> None:
        """Leave in good order, also after a known trouble: the next owner need not be careful."""
        self.decider.stop()
        try:
            self._limit.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave after an error: nothing more is written. What was proposed may still be decided."""
        self._keeping.close()
        self.decider.close()

    def _propose_next(self) -> None:
        """The records that were read; without any the markers at the end of an input, so that a drained input has no lag."""
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
        """What was written goes with this call, but for the states that go to disk: the next task's transaction takes its
        memory, warm, while this one is waiting for its decision. Kept until then it costs 3 % of the throughput.
        """
        self._proposed, self._changes, self._needed = records, prepared.changes, self._keeping.needed(prepared.states)
        self.decider.propose(prepared, topic_ids)

    def _apply(self, decisions: Iterable[Decided]) -> None:
        """Apply the bytes that were decided, never others: a handler with dice or a clock does not compute them again."""
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
            # Once: a task that was away applies very many, and has read as many records as a proposal may have.
            self._buffer.drop(self.progress.offsets_next)
        if not self.decider.pending:
            self._proposed, self._changes, self._needed = (), {}, ()

    def _changed(self, states: Sequence[tuple[bytes, bytes | None]]) -> tuple[Mapping[str, Change], Sequence[Write]]:
        last = dict(states)
        partition = self._inputs.partition
        needed: list[Write] = [("", partition, *state, None) for state in self._keeping.needed([*last.items()])]
        return changes_of(last, self.topology, self._codec), needed

    def _same_logs(self) -> None:
        """Look now and then whether the inputs still hold what comes next; every transaction looks whether it is them."""
        if self._check.is_due():
            self._ends = self._inputs.identities()
            self.progress.checked(self._ends)
            self.decider.check_log()
