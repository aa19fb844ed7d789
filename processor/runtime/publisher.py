"""The publisher: passes on what was decided, in the order of the versions, by Kafka transactions.

Readers of plain topics know nothing of decisions, and a new replica needs states to begin with. So somebody writes the decided
outputs to their topics and the decided states to the changelog, exactly once, with the version up to which that is done: the
seed's asynchronous output writes. Nothing waits for it; it takes many versions in one transaction when it is behind.

Why nothing is doubled, lost, or out of order, whoever publishes and whoever else believes to:

- The version up to which all is published lies in the changelog, and is written by the very transaction that publishes.
- A publisher begins by initialising the task's transactional id: what another one had open is aborted, and nothing that one
  still does is ever committed. Then it reads that version, and goes on with the next.
- What it writes is what the log says, by the same rule for all: two publishers would write the same records.

So there is no election. Whoever sees a decided version that nobody publishes takes it up; two who do it at once cost each other a
transaction, and the readers nothing.
"""

from collections.abc import Callable, Iterator, Sequence

from onefold.processor.core.abc import Transactions, Write
from onefold.processor.core.decision import Decision, DecisionHistory, Proposal, ProposalKind, begin
from onefold.processor.core.decision_log import DecisionLog, ProposalBody, Proposals, StatusRecord
from onefold.processor.core.errors import Abortable
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import RecordCounts
from onefold.processor.runtime.changelog import TaskProgress
from onefold.processor.runtime.log_decider import proposal_of, read_on, standing_of
from onefold.processor.runtime.retention import Retention
from onefold.processor.runtime.transaction_decider import Transact

# Inputs that the decisions of one transaction have together, when they are several: as many as one may have. Others hear of each
# transaction, and miss whoever is not heard of.
INPUTS_MAX = 5_000
# How long it waits for the next decision before it looks whether it should end.
WAIT_S = 0.1


class Publisher:
    """Publishes one task's decisions. Not safe to share between threads.

    Args:
        name: of the replica that it belongs to, for notes.
        log: a reader of its own of the task's partition of the decision log.
        step: called with the name of each step before the next is taken.
        retention: what it deletes from the log. None: nothing.
    """

    def __init__(
        self,
        topology: Topology,
        partition: int,
        name: str,
        transactions: Transactions,
        log: DecisionLog,
        proposals: Proposals,
        step: Callable[[str], None] = lambda name: None,
        retention: Retention | None = None,
    ) -> None:
        self._topology = topology
        self.partition = partition
        self._name = name
        self._transactions = transactions
        self._log = log
        self._proposals = proposals
        self._transact = Transact(transactions, topology.changelog, partition, step)
        self._retention = retention
        self.progress = TaskProgress()
        self.written = 0  # records in other topics than the changelog, since it was made
        self._before = self.progress  # what whoever reads the changelog finds at least

    def open(self) -> None:
        """Fence whoever published before, and go on where they came to.

        Raises:
            Corrupted: the task is decided by Kafka transactions.
            Refused: the decision log is another one, or lost what comes next.
        """
        self._transactions.open()
        self._begin()

    def _begin(self) -> None:
        found = self._transactions.last_progress()
        self.progress = self._before = TaskProgress.decode(found) if found else TaskProgress()
        standing = begin(self._log.identity(), standing_of(self.progress))
        self._history = DecisionHistory(self.partition, standing)
        self._log.seek(standing.offset)

    def turn(self) -> int:
        """One cycle. Returns how many decisions were published."""
        published = self._publish(self._log.read(WAIT_S))
        if self._retention is not None:
            self._retention.turn(self._log, self._before)
        return published

    def take_back(self, beat: Callable[[], object] = lambda: None) -> TaskProgress:
        """Give the task back to Kafka transactions: close the log, and publish all that was decided before that.

        Args:
            beat: called after each step forward; there may be much to publish.

        Returns:
            The progress, in which no log has the task.

        Raises:
            Retriable, TooMuch: the log does not give what it holds, or does not take an end. Refused: it is not allowed to.
        """
        self.open()
        while self.progress.decided_in is not None:
            end = self._log.identity().end
            while self._history.offset_next < end and self.progress.decided_in is not None:
                self._publish(read_on(self._log))
                beat()
            if self.progress.decided_in is not None:
                self._propose_end()
                self._publish(self._log.read(WAIT_S))  # which also tells why it was not taken
        return self.progress

    def close(self) -> None:
        """Leave; a transaction that is open is aborted."""
        self._transactions.close()
        self._log.close()

    def _publish(self, found: Sequence[tuple[int, bytes | None]]) -> int:
        decisions: list[Decision] = []
        for offset, value in found:
            record = self._proposals.decode(value)
            decision = self._history.take(offset, None if isinstance(record, StatusRecord) else record)
            if decision is not None:
                decisions.append(decision)
        for some in _pieces(decisions):
            self._publish_together(some)
        return len(decisions)

    def _publish_together(self, decisions: Sequence[Decision]) -> None:
        progress = self.progress
        writes: list[Write] = []
        states = 0
        for decision in decisions:
            progress = progress.after(decision)
            writes += self._writes(decision.proposal)
            states += len(decision.proposal.body.states)
        self._commit(writes, progress)
        self.written += len(writes) - states
        note = StatusRecord(self.partition, self._name, {"published": progress.transactions}, progress.log_id)
        self._log.append(self._proposals.encode_note(note))

    def _commit(self, writes: Sequence[Write], after: TaskProgress) -> None:
        try:
            self._transact.write(writes, self.progress, after)
            self._transact.commit()
        except Abortable:
            self._transactions.abort()
            self._begin()  # and the same decisions come again
            raise
        self._before, self.progress = self.progress, after

    def _writes(self, proposal: Proposal) -> list[Write]:
        body: ProposalBody = proposal.body
        changelog, partition = self._topology.changelog, self.partition
        states: list[Write] = [(changelog, partition, key, value, None) for key, value in body.states]
        return [*self._proposals.writes(body.writes), *states]

    def _propose_end(self) -> None:
        """A close where the log stands now, as far as we have read; opened first when it never was."""
        progress = self.progress
        assert progress.decided_in is not None
        kind = ProposalKind.CLOSE if progress.decided_in.opened else ProposalKind.OPEN
        body = ProposalBody(RecordCounts(), [], self._proposals.encode_writes([]))
        proposal = proposal_of(progress, self.partition, self._name, kind, progress.offsets_next, body)
        self._log.append(self._proposals.encode(proposal))


def _pieces(decisions: Sequence[Decision]) -> Iterator[Sequence[Decision]]:
    """What is published together, one after the other."""
    piece: list[Decision] = []
    inputs = 0
    for one in decisions:
        more = sum(one.proposal.body.counts)
        if piece and inputs + more > INPUTS_MAX:
            yield piece
            piece, inputs = [], 0
        piece.append(one)
        inputs += more
    if piece:
        yield piece
