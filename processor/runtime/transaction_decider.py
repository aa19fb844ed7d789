"""Decide by Kafka transaction: a transaction commits the prepared bytes and the new progress atomically."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from onefold.error_codes import Code
from onefold.processor.core.abc import Transactions, TransactionSession, Write
from onefold.processor.core.errors import Abortable, Corrupted, Refused, TooMuch
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.changelog import QUARANTINE_KEY, TaskProgress
from onefold.processor.runtime.compute import Prepared
from onefold.processor.runtime.state_manager import StateManager
from onefold.processor.runtime.state_store import DiskStateStore, MemoryStateStore
from onefold.processor.runtime.task import Decided, Decider, TopicIds


class Transact:
    """One task's Kafka transactions.

    Args:
        changelog: the topic that holds the progress.
        step: called with the name of each step that the transaction reaches.
    """

    def __init__(self, transactions: Transactions, changelog: str, partition: int, step: Callable[[str], None]) -> None:
        self._transactions = transactions
        self._changelog = changelog
        self._partition = partition
        self._step = step

    def write(
        self, writes: Iterable[Write], before: TaskProgress, after: TaskProgress, topic_ids: TopicIds | None = None
    ) -> None:
        """Open a transaction, and produce all records, the progress last.

        Args:
            before: the committed progress, as known to this task.
            after: the progress after the commit.
            topic_ids: as of `Decider.propose`.

        Raises:
            Abortable: the transaction is lost; the caller aborts.
            Corrupted: another owner had the task meanwhile.
            Refused: an input topic was recreated.
        """
        transactions, step = self._transactions, self._step
        step("before_begin")
        if transactions.begin():
            self._still_ours(before)
        step("after_begin")
        transactions.produce(writes)
        step("after_produce")
        progress = after.encode(transactions.partitions)
        transactions.produce_progress((self._changelog, self._partition, PROGRESS_KEY, progress, None))
        if topic_ids is not None:
            before.same_topics(topic_ids())
        step("before_commit")

    def commit(self) -> None:
        """Commit the transaction. Raises `Abortable` if the transaction is lost."""
        self._transactions.commit()
        self._step("after_commit")

    def _still_ours(self, known: TaskProgress) -> None:
        """Check the progress after the re-initialisation of the producer, which fences any other owner of the task.

        If another owner committed a transaction before the fence, the states of this task are stale.
        """
        found = self._transactions.last_progress()
        committed = TaskProgress.decode(found) if found else TaskProgress()
        # A new position in the decision log does not always come with a new version, and must not go back either.
        if (committed.transactions, committed.decided_in) != (known.transactions, known.decided_in):
            raise Corrupted(
                Code.FENCED,
                f"task {self._partition} was another's meanwhile: the changelog has {committed.transactions} transactions, "
                f"we know of {known.transactions}",
            )


class TransactionDecider(Decider):
    """Decides a task without replicas: a proposal is an open transaction, and the commit is the decision (see `Decider`).

    Args:
        step: as of `Task`.
        take_back: takes the task from a decision log (`Publisher.take_back`).
    """

    def __init__(
        self,
        topology: Topology,
        session: TransactionSession,
        step: Callable[[str], None] = lambda name: None,
        take_back: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self._topology = topology
        self._session = session
        self._transact = Transact(session, topology.changelog, session.partition, step)
        self._step = step
        self._take_back = take_back
        self._open = False  # a transaction
        self._asking = False  # whether to write the quarantine first, because the cluster rejected the last transaction
        self._after: TaskProgress | None = None  # the progress after the commit of the open transaction
        self._writing = 0

    @property
    def pending(self) -> bool:
        """Whether a transaction waits for its commit."""
        return self._after is not None

    def open(self, keeping: StateManager) -> MemoryStateStore | DiskStateStore:
        """Fence the predecessor, restore up to the high watermark, and check the identities of the input topics."""
        self._session.open()
        self._step("after_open")
        found = keeping.restore(self._session)
        if found.progress.decided_in is not None:
            if self._take_back is None:
                raise Refused(
                    Code.REPLICAS_CHANGED,
                    f"{self._topology.name} has replicas: its task {self._session.partition} is decided in a log",
                )
            self._take_back()
            found = keeping.restore(self._session)
        self._step("after_restore")
        self.progress, self.quarantine = found.progress.checked(self._session.identities()), found.quarantine
        return found.store

    def is_ready(self, quarantine: Quarantine) -> bool:
        """Return True. After a transaction that was too large, commit the quarantine first."""
        if self._asking:
            self.write_quarantine(quarantine)
            self._asking = False
        return True

    def propose(self, prepared: Prepared, topic_ids: TopicIds) -> None:
        """Write the transaction, without the commit."""
        self._write(chain(prepared.writes, prepared.states), prepared.progress, topic_ids)
        self._after, self._writing = prepared.progress, len(prepared.writes)

    def decisions(self) -> Iterator[Decided]:
        """Commit the proposal."""
        if self._after is not None:
            after, self._after = self._after, None
            self._commit(after)
            self.done.written.append(self._writing)
            yield Decided(at=self._session.progress_next)

    def write_quarantine(self, quarantine: Quarantine) -> None:
        """Write the quarantine to the changelog, in a transaction."""
        write: Write = (self._topology.changelog, self._session.partition, QUARANTINE_KEY, quarantine.encode(), None)
        try:
            self._write([write], self.progress)
            self._commit(self.progress)
        except TooMuch as error:
            # Two small records are never too large, so the next input record is not the cause.
            raise Abortable(error.code, str(error)) from error

    def stop(self) -> None:
        """Abort an open transaction."""
        if self._open:
            self._abort()

    def close(self) -> None:
        """Close the session, which aborts an open transaction."""
        self._session.close()

    def _write(self, writes: Iterable[Write], after: TaskProgress, topic_ids: TopicIds | None = None) -> None:
        self._open = True
        with self._aborting():
            self._transact.write(writes, self.progress, after, topic_ids)

    def _commit(self, after: TaskProgress) -> None:
        with self._aborting():
            self._transact.commit()
        self._open = False
        self.progress = after

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Abort a lost transaction. The task's buffer still holds the records for the next try."""
        try:
            yield
        except Abortable as error:
            self._asking |= isinstance(error, TooMuch)
            self._abort()
            raise

    def _abort(self) -> None:
        self._open, self._after = False, None
        self._session.abort()
