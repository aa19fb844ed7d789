"""Decide by Kafka transaction: prepared bytes, and the progress that they lead to, become true together or not at all."""

from collections.abc import Callable, Iterable, Mapping

from onefold.error_codes import Code
from onefold.processor.core.abc import Transactions, Write
from onefold.processor.core.errors import Corrupted
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.runtime.changelog import Progress

#: What waits for the answer to the question which topics the inputs' names stand for.
TopicIds = Callable[[], Mapping[str, str]]


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
        self, writes: Iterable[Write], before: Progress, after: Progress, topic_ids: TopicIds | None = None
    ) -> None:
        """Open a transaction and put everything into it, the progress last.

        Args:
            before: what is true so far, as we know it.
            after: what is true once this is committed.
            topic_ids: what the inputs' names stood for after the last record was read. Consumers go on in a topic that was
                deleted and made again as if nothing had happened; what they read there is never committed.

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

    def _still_ours(self, known: Progress) -> None:
        """A re-initialised producer has fenced whoever had the task meanwhile. If they committed, our states are old."""
        found = self._transactions.last_progress()
        committed = Progress.decode(found) if found else Progress()
        # The place in the decision log may move without a version: it must not go back either.
        if (committed.transactions, committed.decided_in) != (known.transactions, known.decided_in):
            raise Corrupted(
                Code.FENCED,
                f"task {self._partition} was another's meanwhile: the changelog has {committed.transactions} transactions, "
                f"we know of {known.transactions}",
            )
