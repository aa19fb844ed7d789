"""Decide by Kafka transaction: prepared bytes, and the progress that they lead to, become true together or not at all."""

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
        step: called with the name of each step before the next is taken.
    """

    def __init__(self, transactions: Transactions, changelog: str, partition: int, step: Callable[[str], None]) -> None:
        self._transactions = transactions
        self._changelog = changelog
        self._partition = partition
        self._step = step

    def write(
        self, writes: Iterable[Write], before: TaskProgress, after: TaskProgress, topic_ids: TopicIds | None = None
    ) -> None:
        """Open a transaction and put everything into it, the progress last.

        Args:
            before: what is true so far, as we know it.
            after: what is true once this is committed.
            topic_ids: as of `Decider.propose`.

        Raises:
            Abortable: the transaction is lost; `abort` it.
            Corrupted: somebody else had the task meanwhile.
            Refused: an input is another topic now.
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
        """Make it true. Raises `Abortable` when it is lost."""
        self._transactions.commit()
        self._step("after_commit")

    def _still_ours(self, known: TaskProgress) -> None:
        """A re-initialised producer has fenced whoever had the task meanwhile. If they committed, our states are old."""
        found = self._transactions.last_progress()
        committed = TaskProgress.decode(found) if found else TaskProgress()
        # The place in the decision log may move without a version: it must not go back either.
        if (committed.transactions, committed.decided_in) != (known.transactions, known.decided_in):
            raise Corrupted(
                Code.FENCED,
                f"task {self._partition} was another's meanwhile: the changelog has {committed.transactions} transactions, "
                f"we know of {known.transactions}",
            )


class TransactionDecider(Decider):
    """The task alone decides: a proposal is a transaction that is open, and its commit is the decision (see `Decider`).

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
        self._asking = False  # whether the cluster takes anything: it has refused the last transaction
        self._after: TaskProgress | None = None  # the open transaction is committed
        self._writing = 0

    @property
    def pending(self) -> bool:
        """Whether a transaction waits for its commit."""
        return self._after is not None

    def open(self, keeping: StateManager) -> MemoryStateStore | DiskStateStore:
        """Fence the predecessor, restore up to the high watermark, and check that the logs are the same logs."""
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
        """Always. After a transaction that was too much the cluster takes a small one first."""
        if self._asking:
            self.write_quarantine(quarantine)
            self._asking = False
        return True

    def propose(self, prepared: Prepared, topic_ids: TopicIds) -> None:
        """Do all but the commit."""
        self._write(chain(prepared.writes, prepared.states), prepared.progress, topic_ids)
        self._after, self._writing = prepared.progress, len(prepared.writes)

    def decisions(self) -> Iterator[Decided]:
        """Commit what was proposed."""
        if self._after is not None:
            after, self._after = self._after, None
            self._commit(after)
            self.done.written.append(self._writing)
            yield Decided(at=self._session.progress_next)

    def write_quarantine(self, quarantine: Quarantine) -> None:
        """Write it to the changelog."""
        write: Write = (self._topology.changelog, self._session.partition, QUARANTINE_KEY, quarantine.encode(), None)
        try:
            self._write([write], self.progress)
            self._commit(self.progress)
        except TooMuch as error:
            # Two small records are not too much: it is no fault of the record that comes next.
            raise Abortable(error.code, str(error)) from error

    def stop(self) -> None:
        """Abort the transaction that is open."""
        if self._open:
            self._abort()

    def close(self) -> None:
        """Leave; a transaction that is open is aborted."""
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
        """Abort the transaction when it is lost. Its records are still in the task's buffer, and come again."""
        try:
            yield
        except Abortable as error:
            self._asking |= isinstance(error, TooMuch)
            self._abort()
            raise

    def _abort(self) -> None:
        self._open, self._after = False, None
        self._session.abort()
