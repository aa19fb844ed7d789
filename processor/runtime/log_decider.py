"""Decide by a decision log, which a task shares with its replicas: append proposals, and read back the accepted ones.

All replicas of the task do this concurrently, without a leader: the log determines the accepted proposals (see
`core.decision`). A restore reads the changelog, which a publisher updates from the log (see `publisher`), and then the later
decisions of the log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, Protocol

import msgspec

from onefold.error_codes import Code
from onefold.processor.core.abc import Inputs, Transactions, Write
from onefold.processor.core.decision import (
    Decision,
    DecisionHistory,
    InputPosition,
    LogPosition,
    Proposal,
    ProposalKind,
    Range,
    TaskPosition,
    begin,
)
from onefold.processor.core.decision_log import DecisionLog, ProposalBody, Proposals, StatusRecord
from onefold.processor.core.errors import Corrupted, Refused, Retriable, TooMuch
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.changelog import DecidedIn, TaskProgress
from onefold.processor.runtime.compute import Prepared
from onefold.processor.runtime.record_limits import Sizes
from onefold.processor.runtime.state_manager import RestoredState, StateManager
from onefold.processor.runtime.state_store import DiskStateStore, MemoryStateStore
from onefold.processor.runtime.takeover import ProposalBackoff, TaskShares
from onefold.processor.runtime.task import Decided, Decider, TopicIds
from onefold.processor.runtime.transaction_decider import Transact

# How long to wait for a record, or for the outcome of a proposal, in each cycle.
WAIT_S = 0.05
# A proposal without an outcome for this time is computed again. If the log holds both proposals, the rule accepts only one.
PENDING_S = 5.0
# Maximum input records of a proposal. A record of the log must hold the proposal, and a large one delays all of its outputs.
RECORDS_MAX = 5_000
# Maximum empty reads in a row before the log's end, 20 s in total. The election of a leader takes less time.
EMPTY_READS_MAX = 400


class Publishes(Protocol):
    """Publishes for a replica when necessary, in a separate thread.

    Attributes:
        failure: the error that ended the publishing for good.
    """

    failure: BaseException | None

    def start(self) -> None:
        """Start the thread."""

    def stop(self) -> None:
        """End after the current transaction, and wait for the end."""


class _Pending(NamedTuple):
    """The last proposal of this replica, and its time. Recognized by equal bytes: an earlier run had the same replica name."""

    value: bytes
    proposal: Proposal
    since: float


class LogDecider(Decider):
    """Decides one task together with its other replicas (see `Decider`).

    Args:
        name: the name of the replica; unique in the pipeline, and the same after a restart.
        inputs: the task's partition of every input.
        log: the task's partition of the decision log.
        changelog: read for the states; opened only to take the task from an owner that decides by Kafka transactions.
        step: as of `Task`.
        shares: the author of each task, shared by all tasks of a process.
        publishing: makes the publishing of this replica. None: the replica never publishes.
        clock: monotonic seconds.
    """

    records_max, wait_s = RECORDS_MAX, WAIT_S

    def __init__(
        self,
        topology: Topology,
        name: str,
        inputs: Inputs,
        log: DecisionLog,
        changelog: Transactions,
        proposals: Proposals,
        step: Callable[[str], None] = lambda name: None,
        shares: TaskShares | None = None,
        publishing: Callable[["LogDecider"], Publishes] | None = None,
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self.partition = inputs.partition
        self.score: tuple[int, int] = (0, 0)
        #: The last published version, by the status records that this replica has read.
        self.published = 0
        self._topology, self._name = topology, name
        self._inputs, self._log, self._changelog = inputs, log, changelog
        self._proposals = proposals
        self._step = step
        self._clock = clock
        self._pending: _Pending | None = None
        self._refused = False  # the cluster rejected the last proposal
        self._asking = False  # wait for a status record, as a sign that the cluster accepts writes
        self._shares = shares or TaskShares(name, clock)
        self._backoff = ProposalBackoff(self.partition, self._shares, clock)
        self._publishing = publishing(self) if publishing else None

    @property
    def pending(self) -> bool:
        """Whether the last proposal has no outcome yet, for at most `PENDING_S`."""
        return self._pending is not None

    def open(self, keeping: StateManager) -> MemoryStateStore | DiskStateStore:
        """Restore from the changelog, and position the log after the changelog's last decision.

        Raises:
            Refused: an input or the decision log was recreated, or has lost the next records; or the topology reads other
                inputs than the last decision.
            Corrupted: retention deleted decisions during the restore. The changelog holds these decisions by now.
        """
        # The start of the log is read first: the changelog holds all decisions before the start. If retention deletes decisions
        # that this task needs during the restore, the first read of the log fails, and the task starts over.
        start = self._log.identity().start
        found = self._restored(keeping)
        # The ends of the inputs are read after the changelog: the progress of a faster peer may be beyond earlier ends.
        progress = found.progress.checked(self._inputs.identities())
        self._step("after_restore")
        log = self._log.identity()
        standing = begin(log._replace(start=start), standing_of(progress))
        self._log.seek(standing.offset)
        self._history = DecisionHistory(self.partition, standing)
        self._end = log.end  # the end of the log at the start
        self.restoring = standing.offset < log.end  # decisions, and status records with the last quarantine
        self._sizes = Sizes(self._changelog.record_bytes_max)
        self.progress, self.published = progress, progress.transactions
        return found.store

    def start(self) -> None:
        """Start the publishing thread, which publishes when necessary."""
        if self.published < self.progress.transactions and self.unpublished_since is None:
            self.unpublished_since = self._clock()
        if self._publishing is not None:
            self._publishing.start()

    def is_ready(self, quarantine: Quarantine) -> bool:
        """Whether no proposal is pending.

        After a proposal that was too large, the replica first writes the quarantine and reads a status record back. If the log
        has no opening yet, the replica proposes one first. Raises the error that ended the publishing for good.
        """
        if self._publishing is not None and self._publishing.failure is not None:
            raise self._publishing.failure
        if self._refused:
            self.write_quarantine(quarantine)
            self._refused, self._asking = False, True
        if self.pending or self._asking:
            return False
        if self.progress.decided_in is not None and not self.progress.decided_in.opened:
            self._append(self._encoded(ProposalKind.OPEN, self.progress, []))
            return False
        return True

    def holds_off(self) -> bool:
        """Whether to leave the next proposal to the author of the last decision."""
        return self._backoff.waits()

    def propose(self, prepared: Prepared, topic_ids: TopicIds) -> None:
        """Append a proposal."""
        pending = self._encoded(ProposalKind.STEP, prepared.progress, prepared.states, prepared.writes)
        self._step("before_append")
        self.progress.same_topics(topic_ids())
        try:
            self._sizes.check(len(pending.value), chain(prepared.writes, prepared.states))
            self._append(pending)
        except TooMuch:
            self._refused = True
            raise
        self._step("after_append")

    def decisions(self) -> Iterator[Decided]:
        """Read further in the log. Wait for a record while a proposal is pending, or during a backoff."""
        if self.restoring:
            yield from self.take(read_on(self._log))
            self.restoring = self._history.offset_next < self._end
            return
        if self._pending is not None and self._clock() - self._pending.since > PENDING_S:
            self._pending = None
        try:
            found = self._log.read(WAIT_S if self.pending or self._asking else self._backoff.left_s)
        except TooMuch:
            # The append of this proposal, or of a status record before it, failed.
            self._pending, self._refused, self._asking = None, True, False
            raise
        yield from self.take(found)

    def take(self, found: Sequence[tuple[int, bytes | None]]) -> Iterator[Decided]:
        """Yield the decisions among the next records of the log."""
        for offset, value in found:
            ours = self._pending if self._pending is not None and self._pending.value == value else None
            record = self._proposals.decode(value) if ours is None else ours.proposal
            if isinstance(record, StatusRecord):
                self._hear(record)
                record = None
            decision = self._history.take(offset, record)
            if decision is not None:
                yield self._decided(decision, ours=ours is not None)
            elif ours is not None:
                self._pending = None  # rejected

    def write_quarantine(self, quarantine: Quarantine) -> None:
        """Append a status record, for the next run of this replica only."""
        body = {"quarantine": msgspec.to_builtins(quarantine)}
        note = StatusRecord(self.partition, self._name, body, self.progress.log_id)
        self._log.append(self._proposals.encode_note(note))

    def check_log(self) -> None:
        """Raise `Corrupted` if the decision log was recreated by a reset of the pipeline.

        The states in memory are from before the reset. If the new log reached the same version and offsets, it would accept a
        proposal that was computed from the old states.
        """
        if self.progress.decided_in is not None and self.progress.log_id != self._log.identity().topic_id:
            raise Corrupted(Code.DECISIONS_LOST, "the decision log was made again: what was decided before is dropped")

    def stop(self) -> None:
        """Stop publishing."""
        if self._publishing is not None:
            self._publishing.stop()

    def close(self) -> None:
        """Close all clients. The last proposal may still be accepted."""
        self.stop()
        self._inputs.close()
        self._log.close()
        self._changelog.close()

    # --- at the start

    def _restored(self, keeping: StateManager) -> RestoredState:
        found = keeping.restore(self._changelog, stable=True)
        if found.progress.decided_in is None:
            self._take_over()
            found = keeping.restore(self._changelog)
        self._refuse_other_inputs(found.progress)
        return found

    def _take_over(self) -> None:
        """Take the task from Kafka transactions to the decision log, by a fenced transaction with a new progress record."""
        self._changelog.open()
        found = self._changelog.last_progress()
        before = TaskProgress.decode(found) if found else TaskProgress()
        if before.decided_in is not None:
            return  # a peer was faster; `open` has fenced the publisher, and a replica takes over publishing
        identities = self._inputs.identities()
        log_id, _, end = self._log.identity()
        decided_in = DecidedIn(log_id, end, opened=False)
        after = replace(before.checked(identities), transactions=before.transactions + 1, decided_in=decided_in)
        transact = Transact(self._changelog, self._topology.changelog, self.partition, self._step)
        transact.write([], before, after)
        transact.commit()

    def _refuse_other_inputs(self, progress: TaskProgress) -> None:
        """Raise `Refused` if the topology reads other inputs than the last decision.

        Only replicas with the same new inputs would accept a proposal with other inputs. Publishers, sinks and the verifier
        would reject the proposal.
        """
        decided_in, before, now = progress.decided_in, {*progress.offsets_next}, {*self._topology.reads}
        if decided_in is not None and decided_in.opened and before != now:
            changes = [f"{'with' if topic in now else 'without'} {topic}" for topic in sorted(before ^ now)]
            raise Refused(
                Code.INPUTS_CHANGED,
                f"{self._topology.name} reads other inputs now, {', '.join(changes)}, and decisions go on with those that they "
                f"began with. Stop all replicas, let one process run with ONEFOLD_REPLICAS=1, and start the replicas again",
            )

    # --- decisions

    def _decided(self, decision: Decision, *, ours: bool) -> Decided:
        proposal = decision.proposal
        body: ProposalBody = proposal.body
        self._pending = None
        self.progress = self.progress.after(decision)
        if proposal.kind is ProposalKind.CLOSE:
            raise Refused(
                Code.REPLICAS_CHANGED,
                f"{self._topology.name} is decided by Kafka transactions again: {proposal.proposer} has taken task "
                f"{self.partition} back. Start this one again to have replicas",
            )
        self._shares.decided(self.partition, proposal.proposer)
        if proposal.kind is ProposalKind.OPEN:
            return Decided(body.states)
        won, decided = self.score
        self.score = won + ours, decided + 1
        self._backoff.decided(ours=ours)
        if self.unpublished_since is None and self.published < self.progress.transactions:
            self.unpublished_since = self._clock()
        return Decided(None if ours else body.states)

    def _hear(self, note: StatusRecord) -> None:
        if note.task != self.partition or note.log_id not in ("", self.progress.log_id):
            return
        published, quarantine = note.body.get("published"), note.body.get("quarantine")
        if isinstance(published, int) and published > self.published:
            self.published = published
            self.unpublished_since = self._clock() if published < self.progress.transactions else None
        if note.proposer == self._name:
            self._asking = False
            if quarantine is not None:
                # Another program may have written an invalid status record. An error would recur after each restart.
                with suppress(msgspec.ValidationError):
                    self.quarantine = msgspec.convert(quarantine, Quarantine)

    # --- proposals

    def _encoded(
        self, kind: ProposalKind, after: TaskProgress, states: Sequence[Write], writes: Sequence[Write] = ()
    ) -> _Pending:
        counts = after.counts.since(self.progress.counts)
        written = [(key or b"", value) for _, _, key, value, _ in states]
        body = ProposalBody(counts, written, self._proposals.encode_writes(writes), after.ticked_ms)
        proposal = proposal_of(self.progress, self.partition, self._name, kind, after.offsets_next, body)
        return _Pending(self._proposals.encode(proposal), proposal, 0.0)

    def _append(self, pending: _Pending) -> None:
        self._log.append(pending.value)
        self._pending = pending._replace(since=self._clock())


def standing_of(progress: TaskProgress) -> LogPosition:
    """The log position after the decisions in the changelog. Raises `Corrupted` if the task is in no decision log."""
    if progress.decided_in is None:
        raise Corrupted(Code.REPLICAS_CHANGED, "the changelog says that the task is decided by Kafka transactions")
    log_id, offset, opened = progress.decided_in
    inputs = {topic: InputPosition(progress.topic_ids[topic], at) for topic, at in progress.offsets_next.items()}
    if opened:
        return LogPosition(log_id, offset, TaskPosition(progress.transactions, inputs))
    # The opening carries the changelog's present version, and every earlier proposal in the log a lower version.
    return LogPosition(log_id, offset, TaskPosition(progress.transactions - 1, inputs, closed=True))


def proposal_of(
    progress: TaskProgress, task: int, name: str, kind: ProposalKind, ends: Mapping[str, int], body: ProposalBody
) -> Proposal:
    """The replica's proposal that follows `progress`: the inputs up to the offsets `ends`."""
    inputs = {
        topic: Range(progress.topic_ids[topic], offset, ends[topic]) for topic, offset in progress.offsets_next.items()
    }
    return Proposal(task, progress.transactions, inputs, name, body, kind, progress.log_id)


def read_on(log: DecisionLog) -> Sequence[tuple[int, bytes | None]]:
    """Read the next records before the log's end. Raises `Retriable` after too many empty reads."""
    for _ in range(EMPTY_READS_MAX):
        if found := log.read(WAIT_S):
            return found
    raise Retriable(
        Code.TOPIC_UNREADABLE,
        "the decision log does not give what it holds: its partition has no leader, or it is shorter than it was",
    )
