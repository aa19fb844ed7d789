"""One task: one partition of the inputs, its states, its session. Here is the cycle: poll, fold, commit, apply."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from onefold.processor.core.abc import Codec, Session, Write
from onefold.processor.core.errors import Abortable, Corrupted, Rejected, TooMuch
from onefold.processor.core.fold import fold
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import (
    SOURCE_HEADER,
    TIMESTAMP_HEADER,
    Counts,
    DeadLetter,
    Record,
    Transaction,
    source_template,
)
from onefold.processor.runtime import interleaving
from onefold.processor.runtime.batch_size import BatchSize
from onefold.processor.runtime.bugs import NO_FAULT, Bugs
from onefold.processor.runtime.changelog import QUARANTINE_KEY, STATE, Progress, restore
from onefold.processor.runtime.dead_letters import headers_of, key_of, value_of
from onefold.processor.runtime.quarantine import BATCH, CRASHES_MAX, WINDOW, Quarantine
from onefold.processor.runtime.store import Store

# How long a task waits for a first record before it looks at everything else, and whether it should end.
WAIT_S = 0.1
# Three questions to the broker, 5 ms together.
CHECK_EVERY_S = 1.0

#: What waits for the answer to the question which topics the inputs' names stand for.
TopicIds = Callable[[], Mapping[str, str]]


class Task:
    """Folds one partition. Not safe to share between threads.

    Args:
        step: called with the name of each step before the next is taken; tests stop a task there.
        beat: called while a long restore goes on, so that a watchdog knows it does.
        compute_lock: held while a task computes, so that tasks of one process compute one after the other. Python's own lock
            would let them take turns every 5 ms, which costs half of the throughput; waiting for the broker is outside.
            A record that is folded alone has it until it is committed: nobody else's crash is to be counted against it.
        check_every_s: how often the inputs are asked whether they are still the same topics.
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
    ) -> None:
        self.topology = topology
        self._session = session
        self._codec = codec
        self._step = step
        self._beat = beat
        self._compute_lock = compute_lock or nullcontext()
        self.store = Store()
        self.progress = Progress()
        self.quarantine = Quarantine()
        self._ends: dict[str, int] = {}
        self._check_every_s = check_every_s
        self._checked_at = 0.0
        self._went_well = 0
        self._size = BatchSize()
        self._bugs = Bugs()

    def open(self) -> None:
        """Take the task over: fence, restore up to the high watermark, check that the logs are the same logs.

        Raises:
            Refused: an input topic is not the one that was read before, or lost what comes next.
        """
        self._session.open()
        self._step("after_open")
        restored = restore(self.topology, self._codec, self._beating(self._session.restore()))
        self._step("after_restore")
        self.store = restored.store
        identities = self._session.identities()
        self.progress = restored.progress.checked(identities)
        self._ends = {topic: identity.end for topic, identity in identities.items()}
        self._session.seek(self.progress.offsets_next)
        self._went_well = 0
        self._write_quarantine(restored.quarantine.successor())

    def _beating(self, records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes | None]]:
        for record in records:
            self._beat()
            yield record

    def turn(self) -> int:
        """One cycle. Returns how many records it folded."""
        records = self._session.poll(min(self._size.records_max, BATCH[self.quarantine.level]), WAIT_S)
        polled_at = time.monotonic()
        if not records:
            self._size.idle()
            self._rest()
            return 0
        topic_ids = self._session.ask_topic_ids()
        self._same_logs()
        try:
            transaction = self._make_true(records, topic_ids)
        except TooMuch as reason:
            self._size.too_much(records, str(reason))
            raise
        self.store.apply(transaction.changes)
        self._step("after_apply")
        self._went_well += len(records)
        self._size.went_well(len(records), time.monotonic() - polled_at, self.progress.offsets_next)
        self._relax()
        return len(records)

    def _make_true(self, records: Sequence[Record], topic_ids: TopicIds) -> Transaction:
        """Fold them and commit what comes of it, at level 2 without anybody beside it."""
        if self._size.was_too_much(records):
            # The cluster takes a transaction now: if this record fails once more, it is not because the cluster is away.
            self._write_quarantine(self.quarantine)
        rejected = self._size.set_aside(records)
        if self.quarantine.level == 2:
            with self._compute_lock, self._folded_alone(records[0]) as poisonous:
                transaction, progress = self._transact(records, {**rejected, **poisonous}, topic_ids)
                self._commit(progress)
        else:
            with self._compute_lock:
                transaction, progress = self._transact(records, rejected, topic_ids)
            self._commit(progress)
        return transaction

    def close(self) -> None:
        """Leave in good order; the next owner need not be careful."""
        try:
            if not self.quarantine.clean:
                self._write_quarantine(Quarantine())
        finally:
            self._session.close()

    def retreat(self) -> None:
        """Leave after a known trouble: what is open is aborted first, so that "clean" is all that is written."""
        self._session.abort()
        self.close()

    def abandon(self) -> None:
        """Leave after an error: what is open is aborted, and nothing more is written."""
        self._session.close()

    def _rest(self) -> None:
        """Nothing to read: markers at the end of an input are read too, so that a drained input has no lag."""
        self._same_logs()
        positions = self._session.positions()
        if any(offset > self.progress.offsets_next[topic] for topic, offset in positions.items()):
            progress = self.progress.advanced(positions, Counts())
            self._write([], progress, self._session.ask_topic_ids())
            self._commit(progress)
        self._relax()

    def _relax(self) -> None:
        """Be less careful when what a predecessor may have crashed at went well: it lies below where the inputs ended."""
        if self.quarantine.clean:
            return
        if all(self.progress.offsets_next[topic] >= end for topic, end in self._ends.items()):
            self._write_quarantine(Quarantine())
        elif self._went_well >= WINDOW[self.quarantine.level]:
            self._went_well = 0
            self._write_quarantine(self.quarantine.relaxed())

    @contextmanager
    def _folded_alone(self, record: Record) -> Iterator[dict[Record, str]]:
        """Note that it is tried. The note is taken back when its transaction is aborted: that is no crash."""
        before = self.quarantine
        if before.poisonous(record.topic, record.offset):
            yield {record: f"the processor crashed {CRASHES_MAX} times at this record"}
            return
        self._write_quarantine(before.trying(record.topic, record.offset))
        try:
            yield {}
        except Abortable:
            with suppress(Abortable):
                self._write_quarantine(before)
            self.quarantine = before
            raise

    def _transact(
        self, records: Sequence[Record], rejected: dict[Record, str], topic_ids: TopicIds
    ) -> tuple[Transaction, Progress]:
        """Fold them, and write what comes of it: all but the commit."""
        transaction, writes = self._prepare(records, rejected)
        progress = self.progress.advanced(transaction.offsets_next, transaction.counts)
        self._write(writes, progress, topic_ids)
        return transaction, progress

    def _prepare(self, records: Sequence[Record], rejected: dict[Record, str]) -> tuple[Transaction, list[Write]]:
        """Fold and encode. What cannot be folded or encoded is the fault of a record: fold again without it."""

        def decode(record: Record) -> object:
            if record in rejected:
                raise Rejected(rejected[record])
            return self._codec.decode(record)

        partition_of = self._session.partition_of
        while True:
            chosen = decode if rejected else self._codec.decode
            try:
                transaction = fold(self.topology, self.store, records, chosen, partition_of)
                return transaction, [*self._encode(transaction), *self._order(records)]
            except _Unencodable as fault:
                rejected[fault.record] = fault.reason
                continue
            except NO_FAULT:
                raise
            except Exception as error:  # noqa: BLE001 - raised again unless a record is at fault
                bug = error
            faults = self._bugs.at_fault(self.topology, self.store, records, chosen, partition_of, self._try_encode)
            if not faults:
                raise bug
            rejected.update(faults)

    def _encode(self, transaction: Transaction) -> list[Write]:
        encode, encode_state, changelog = self._codec.encode, self._codec.encode_state, self.topology.changelog
        partition = self._session.partition
        source = {topic: source_template(topic, partition) for topic in self.topology.inputs}
        writes: list[Write] = []
        add = writes.append
        cause: Record | None = None
        try:
            for topic, key, value, cause, more in transaction.outputs:
                headers: list[tuple[str, bytes | None]] = [(SOURCE_HEADER, source[cause.topic] % cause.offset)]
                if more:
                    headers += more
                add((topic, None, key.encode(), encode(topic, value), headers))
            for key, (state, cause) in transaction.changes.items():  # noqa: B007 - named when it cannot be encoded
                data = None if state is None else encode_state(state)
                add((changelog, partition, STATE + key.encode(), data, None))
        except Rejected as reason:
            assert cause is not None, "something was being encoded"
            raise _Unencodable(cause, str(reason)) from reason
        for record, key, partition_to in transaction.misrouted:
            # Its own timestamp is when it is copied: an old one could be deleted, by age, before it is read.
            kept = [(SOURCE_HEADER, record.source), (TIMESTAMP_HEADER, b"%d" % record.timestamp_ms)]
            add((record.topic, partition_to, key.encode(), record.value, [*record.headers, *kept]))
        writes += [self._dead(letter) for letter in transaction.dead_letters]
        return writes

    def _order(self, records: Sequence[Record]) -> list[Write]:
        """With several inputs: in which order their records were folded, which nobody else can know."""
        if self.topology.order is None:
            return []
        return [(self.topology.order, self._session.partition, None, interleaving.encode(records), None)]

    def _try_encode(self, transaction: Transaction) -> None:
        with suppress(_Unencodable):
            self._encode(transaction)

    def _dead(self, letter: DeadLetter) -> Write:
        record = letter.record
        topic = self.topology.dead[record.topic]
        return (topic, self._session.partition, key_of(letter), value_of(letter), headers_of(letter))

    def _write_quarantine(self, quarantine: Quarantine) -> None:
        write: Write = (self.topology.changelog, self._session.partition, QUARANTINE_KEY, quarantine.encode(), None)
        try:
            self._write([write], self.progress)
            self._commit(self.progress)
        except TooMuch as error:
            # Two small records are not too much: it is no fault of the record that comes next.
            raise Abortable(str(error)) from error
        self.quarantine = quarantine

    def _write(self, writes: list[Write], progress: Progress, topic_ids: TopicIds | None = None) -> None:
        """Open a Kafka transaction and put everything into it, the progress last.

        Args:
            topic_ids: what the inputs' names stood for after the last record was read. Consumers go on in a topic that was
                deleted and made again as if nothing had happened; what they read there is never committed.
        """
        session, step = self._session, self._step
        step("before_begin")
        if session.begin():
            self._still_ours()
        step("after_begin")
        with self._rewinding():
            session.produce(writes)
            step("after_produce")
            session.produce([(self.topology.changelog, session.partition, PROGRESS_KEY, progress.encode(), None)])
            if topic_ids is not None:
                self.progress.same_topics(topic_ids())
            step("before_commit")

    def _still_ours(self) -> None:
        """A re-initialised producer has fenced whoever had the task meanwhile. If they committed, our states are old."""
        found = self._session.last_progress()
        committed = Progress.decode(found).transactions if found else 0
        if committed != self.progress.transactions:
            raise Corrupted(
                f"task {self._session.partition} was another's meanwhile: the changelog has {committed} transactions, "
                f"we know of {self.progress.transactions}"
            )

    def _same_logs(self) -> None:
        """Look now and then whether the inputs still hold what comes next; every transaction looks whether it is them."""
        now = time.monotonic()
        if now - self._checked_at >= self._check_every_s:
            self._checked_at = now
            self.progress.checked(self._session.identities())

    def _commit(self, progress: Progress) -> None:
        with self._rewinding():
            self._session.commit()
        self._step("after_commit")
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


class _Unencodable(Exception):
    def __init__(self, record: Record, reason: str) -> None:
        super().__init__(reason)
        self.record = record
        self.reason = reason
