"""The publisher: writes accepted proposals to their topics, in the order of the versions, by Kafka transactions.

Readers of plain topics do not read the decision log, and a new replica starts from stored states. So a publisher writes the
accepted outputs to the output topics, and the accepted states to the changelog, exactly once. No decision waits for the
publisher. A publisher that lags publishes many versions in one transaction.

Records are never duplicated, lost or reordered, even when several replicas publish at once:

- The changelog holds the last published version. The transaction that publishes also writes the version.
- A publisher starts by initialising the task's transactional id. Kafka aborts the previous publisher's open transaction, and
  rejects later ones. Then the publisher reads the last published version, and continues with the next.
- A publisher writes only records of the log, by the same rule as all peers. Two publishers would write the same records.

So there is no election. A replica that sees a decided version unpublished for too long starts to publish. Two publishers at
once cost each other a transaction, and the readers see no difference.
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

# Maximum input records of several decisions in one transaction, as many as one decision may have. Peers read of each
# transaction, and take over from a publisher whose transactions take too long.
INPUTS_MAX = 5_000
# How long the publisher waits for the next decision in each cycle.
WAIT_S = 0.1


class Publisher:
    """Publishes one task's decisions. Not safe to share between threads.

    Args:
        name: the name of the publisher's replica, for status records.
        log: the publisher's own reader of the task's partition of the decision log.
        step: called with the name of each step that the publisher reaches.
        retention: deletes published records from the log. None: the log keeps all records.
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
        self.written = 0  # records in topics beside the changelog, since the publisher was made
        self._before = self.progress  # every later reader of the changelog finds this progress or a newer one

    def open(self) -> None:
        """Fence the previous publisher, and continue after the last published version.

        Raises:
            Corrupted: the task is decided by Kafka transactions.
            Refused: the decision log was recreated, or has lost the next records.
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
        """Run one cycle. Returns the number of published decisions."""
        published = self._publish(self._log.read(WAIT_S))
        if self._retention is not None:
            self._retention.turn(self._log, self._before)
        return published

    def take_back(self, beat: Callable[[], object] = lambda: None) -> TaskProgress:
        """Give the task back to Kafka transactions: close the log, and publish all earlier decisions.

        Args:
            beat: called after each batch of decisions, because a long log takes time.

        Returns:
            The progress, with the task in no decision log.

        Raises:
            Retriable, TooMuch: the log does not return its records, or does not accept the close.
            Refused: Kafka does not permit the close.
        """
        self.open()
        while self.progress.decided_in is not None:
            end = self._log.identity().end
            while self._history.offset_next < end and self.progress.decided_in is not None:
                self._publish(read_on(self._log))
                beat()
            if self.progress.decided_in is not None:
                self._propose_end()
                self._publish(self._log.read(WAIT_S))  # raises the reason of a failed append
        return self.progress

    def close(self) -> None:
        """Close the clients, which aborts an open transaction."""
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
            self._begin()  # reads the same decisions again
            raise
        self._before, self.progress = self.progress, after

    def _writes(self, proposal: Proposal) -> list[Write]:
        body: ProposalBody = proposal.body
        changelog, partition = self._topology.changelog, self.partition
        states: list[Write] = [(changelog, partition, key, value, None) for key, value in body.states]
        return [*self._proposals.writes(body.writes), *states]

    def _propose_end(self) -> None:
        """Append a close at the last position that was read, or an opening if the log was never opened."""
        progress = self.progress
        assert progress.decided_in is not None
        kind = ProposalKind.CLOSE if progress.decided_in.opened else ProposalKind.OPEN
        body = ProposalBody(RecordCounts(), [], self._proposals.encode_writes([]))
        proposal = proposal_of(progress, self.partition, self._name, kind, progress.offsets_next, body)
        self._log.append(self._proposals.encode(proposal))


def _pieces(decisions: Sequence[Decision]) -> Iterator[Sequence[Decision]]:
    """Split the decisions into the pieces of one transaction each."""
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
