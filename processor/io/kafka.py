"""Kafka: the session of a task: its inputs, its transactions, its changelog.

librdkafka lacks KIP-890: a request that it sent again on a new connection can reach the broker after the *next* transaction
has begun, and commit or abort that one. The defence is to never begin a transaction on a producer that may have such a
request under way: after any sign of one (a lost connection, a request that timed out, a slow call) the current transaction
is finished and the producer replaced, with the same transactional id; the broker's new epoch turns the late request away.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.abc import ChangelogIs, Write, transactional_id
from onefold.processor.core.errors import Abortable, Corrupted, Forbidden, Retriable, TooMuch
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.io.admin import (
    high_watermark,
    identity,
    record_bytes_max,
    stable_end,
    tombstones_kept_s,
)
from onefold.processor.io.inputs import RESTORE_WAIT_MS, KafkaInputs
from onefold.processor.io.kafka_errors import FENCED, LOST_IN_A_CALLBACK, TOO_MUCH, raising, translate
from onefold.processor.io.range_reader import read
from onefold.processor.io.topics import RECORD_BYTES_MAX

# A transaction left open by a crash that nobody takes over hides what follows it from readers for this long; it must
# exceed the delivery timeout below, and the longest fold of a batch.
TRANSACTION_TIMEOUT_MS = 15_000
DELIVERY_TIMEOUT_MS = 10_000
# One call into librdkafka; a commit that needs longer is called again, which is the only legal thing to do.
CALL_TIMEOUT_S = 5.0
# Above this a call was not just slow: something was sent again, or may be.
AMBIGUOUS_CALL_S = 1.0
# What is sent to a partition together, before it is compressed: below the default of what a topic takes.
BATCH_BYTES = 1_000_000
# Records that wait in the producer, of at most a gigabyte (librdkafka's own bound). A transaction may have more: what comes
# next waits for room.
QUEUE_MESSAGES = 2_000_000
# Restoring must advance at least once in this time; less than the group's poll interval, so that the sentence is seen.
RESTORE_STALL_S = 30.0
# The last progress record is followed by a marker, and by what was aborted since; more is read when that is not enough.
_TAIL = 20
# librdkafka's RD_KAFKA_PARTITION_UA: the partition of the key.
UNASSIGNED = -1

# Who finds a transaction open is told to come back when it is aborted, which takes some 10 ms. librdkafka asks again after a
# fixed 500 ms, and at once when it is called again: so it is called again every 20 ms, for as long as that may gain something.
TAKING_OVER_S = (*[0.02] * 25, CALL_TIMEOUT_S * 4)

_AMBIGUOUS = ("FAIL", "REQTMOUT")


class AmbiguousRequests(logging.Handler):
    """Listens to librdkafka's log for signs that a request may have been sent twice."""

    def __init__(self) -> None:
        super().__init__()
        self.signs: list[str] = []
        # One a session: a name of its own keeps another session's signs out, and its lines out of the program's log.
        self.logger = logging.getLogger(f"librdkafka.{id(self)}")
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.logger.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the signs, and show nothing: what matters surfaces as an error of a call."""
        message = record.getMessage()
        if message.startswith(_AMBIGUOUS):
            self.signs.append(message)


class KafkaSession(KafkaInputs):
    """The session of one task on a real cluster (see `core.abc.Session`).

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        reinitialise_when_ambiguous: False switches the defence above off. Only its own test does that.
        partitions: as of `KafkaInputs`.
    """

    def __init__(
        self,
        topology: Topology,
        partition: int,
        client: Mapping[str, str],
        *,
        reinitialise_when_ambiguous: bool = True,
        partitions: int | None = None,
        admin: AdminClient | None = None,
    ) -> None:
        super().__init__(topology, partition, client, partitions=partitions, admin=admin)
        self._transactional_id = transactional_id(topology.name, partition)
        self._reinitialise_when_ambiguous = reinitialise_when_ambiguous
        self._ambiguous = AmbiguousRequests()
        self._producer: Producer | None = None
        self._begun = False
        self._batch_bytes = BATCH_BYTES
        self.reinitialised = 0
        self.progress_next: int | None = None

    # --- taking over

    def open(self) -> None:
        """A producer of our own epoch: fences the predecessor and aborts what it left open."""
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        settings = {
            **self._client,
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "enable.idempotence": True,
            "acks": "all",
            # Java's partitioner, so that keys live where every other producer puts them.
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 5,
            "batch.size": self._batch_bytes,
            "message.max.bytes": RECORD_BYTES_MAX,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            # 100 ms of waiting each time the coordinator is still busy with the last marker would be most of a commit.
            "retry.backoff.ms": 20,
            # The lines that `AmbiguousRequests` reads are of level 6.
            "log_level": 6,
        }
        producer = kafka_client.producer(settings, logger=self._ambiguous.logger)
        self.acquaint(producer)
        self._take_over(producer)
        producer.poll(0)
        self._ambiguous.signs.clear()
        return producer

    def _take_over(self, producer: Producer) -> None:
        for seconds in TAKING_OVER_S:
            try:
                producer.init_transactions(seconds)
                return
            except KafkaException as error:
                refused = error
                if not error.args[0].retriable():
                    break
        doing = f"taking over {self._transactional_id}"
        if found := kafka_client.explain(refused.args[0], self._client):
            raise Retriable(found.code, f"{doing}: {found.sentence}") from refused
        raise translate(refused.args[0], doing) from refused

    def changelog_is(self) -> ChangelogIs:
        """Which topic the changelog is, and what its partition holds."""
        topic = self._topology.changelog
        return ChangelogIs(*identity(self._admin, topic, self.partition), tombstones_kept_s(self._admin, topic))

    def record_bytes_max(self) -> dict[str, int]:
        """Per topic that the task writes to."""
        return record_bytes_max(self._admin, self._topology.written)

    def restore(self, *, stable: bool = False, start: int | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Committed records of the changelog partition, up to the high watermark; or only up to the last stable offset.

        The last stable offset would not do: an open transaction of somebody else holds it back, and restoring up to it
        "succeeds" with old states.
        """
        changelog = self._topology.changelog
        end = (stable_end if stable else high_watermark)(self._admin, changelog, self.partition)
        return self._changelog(OFFSET_BEGINNING if start is None else start, end)

    def last_progress(self, *, stable: bool = False) -> bytes | None:
        """Value of the last committed progress record. Every transaction ends with one, so it is near the end."""
        end = (stable_end if stable else high_watermark)(self._admin, self._topology.changelog, self.partition)
        span = _TAIL
        while True:
            found = [value for key, value in self._changelog(max(0, end - span), end) if key == PROGRESS_KEY]
            if found or span >= end:
                return found[-1] if found else None
            span *= 10

    def _changelog(self, start: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        with contextlib.closing(self.new_consumer(RESTORE_WAIT_MS)) as consumer:
            self.acquaint(consumer)
            for message in read(consumer, {(self._topology.changelog, self.partition): (start, end)}, RESTORE_STALL_S):
                key = message.key()
                assert key is not None, "every record of a changelog has a key"
                yield key, message.value()

    # --- writing

    def begin(self) -> bool:
        """Begin a transaction, on a producer that is without an ambiguous request; when it was re-initialised for that."""
        if self._begun:
            raise Corrupted(Code.CHANGELOG_WRONG, "a transaction is open already")
        try:
            with raising("begin"):
                self._writer.poll(0)
                reinitialised = bool(self._ambiguous.signs) and self._reinitialise_when_ambiguous
                if reinitialised:
                    # A topic's limit is for what is sent together as well, and a batch beyond it may be why this is necessary.
                    self._batch_bytes = min(BATCH_BYTES, *self.record_bytes_max().values())
                    self._producer = self._new_producer()
                    self.reinitialised += 1
                self._writer.begin_transaction()
        except Abortable as error:
            # Nothing was begun, so there is nothing to abort and nothing to read again.
            raise Corrupted(error.code, str(error)) from error
        self._begun = True
        return reinitialised

    def produce(self, writes: Iterable[Write]) -> None:
        """Add records to the open transaction; when the producer's queue is full, as soon as there is room."""
        self._produce(writes, None)

    def produce_progress(self, write: Write) -> None:
        """Add the progress record, and find out where it comes to lie: the delivery report says, and the commit waits for it."""
        self.progress_next = None
        self._produce([write], self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        # Of a record that was sent twice nobody may know where it lies.
        if error is None and offset is not None and offset >= 0:
            self.progress_next = offset + 1

    def _produce(self, writes: Iterable[Write], delivered: Callable[[KafkaError | None, Message], None] | None) -> None:
        add: Callable[..., None] = self._writer.produce  # its stub refuses a list of headers that are all bytes
        try:
            for topic, partition, key, value, headers in writes:
                at = UNASSIGNED if partition is None else partition
                # By position: names among the arguments cost a third of the call. 0 is now, as its timestamp.
                try:
                    add(topic, value, key, at, delivered, None, 0, headers)
                except BufferError:
                    self._wait_for_room(partial(add, topic, value, key, at, delivered, None, 0, headers))
        except KafkaException as error:
            # A produce that raised did not poison the transaction: committing now would commit a hole.
            cause = error.args[0]
            if cause.code() in FENCED:
                raise translate(cause, "produce") from error
            too_much = cause.code() in TOO_MUCH
            kind, code = (TooMuch, Code.TOO_LARGE) if too_much else (Abortable, Code.TRANSACTION_LOST)
            raise kind(code, f"a record could not be produced: {cause.name()}: {cause.str()}") from error

    def _wait_for_room(self, add: Callable[[], None]) -> None:
        deadline = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000
        while time.monotonic() < deadline:
            with contextlib.suppress(*LOST_IN_A_CALLBACK):  # what it was the next record is told
                self._writer.poll(0.05)
            with contextlib.suppress(BufferError):
                add()
                return
        raise TooMuch(Code.TOO_LARGE, f"the producer's queue was full for {DELIVERY_TIMEOUT_MS / 1000:g} s")

    def commit(self) -> None:
        """Commit; a timeout leaves one legal call, the same again, until the broker's own timeout has passed."""
        try:
            self._commit()
        except Forbidden as error:
            topics = kafka_client.unwritable(self._admin, sorted(self._topology.written), CALL_TIMEOUT_S)
            if not topics:
                raise
            raise Forbidden(
                error.code, kafka_client.cannot(self._client, f"write {', '.join(topics)}").sentence
            ) from error

    def _commit(self) -> None:
        # Delivery takes as long as it takes; only the call after it is short enough to be suspected when it is slow.
        # Who was fenced meanwhile may hear of it here. What is lost of that the commit says.
        with raising("commit"), contextlib.suppress(*LOST_IN_A_CALLBACK):
            self._writer.flush(DELIVERY_TIMEOUT_MS / 1000)
        started = time.monotonic()
        deadline = started + 2 * TRANSACTION_TIMEOUT_MS / 1000
        while True:
            try:
                with raising("commit"):
                    self._writer.commit_transaction(CALL_TIMEOUT_S)
                break
            except Retriable as error:
                self._ambiguous.signs.append("commit was called again")
                if time.monotonic() > deadline:
                    raise Corrupted(Code.COMMIT_UNKNOWN, f"the outcome of a commit stays unknown: {error}") from error
        self._begun = False
        if time.monotonic() - started > AMBIGUOUS_CALL_S:
            self._ambiguous.signs.append("commit was slow")

    def abort(self) -> None:
        """Abort, whatever the abort says: the new producer that the next `begin` takes ends the transaction as well."""
        self._begun = False
        if self._producer is None:
            return
        with contextlib.suppress(KafkaException, *LOST_IN_A_CALLBACK):
            self._producer.abort_transaction(CALL_TIMEOUT_S)
        self._ambiguous.signs.append("a transaction was aborted")

    def close(self) -> None:
        """Leave; readers should not have to wait for the timeout of a transaction that we left open."""
        if self._begun:
            self._begun = False
            with contextlib.suppress(KafkaException, *LOST_IN_A_CALLBACK):
                self._writer.abort_transaction(CALL_TIMEOUT_S)
        self._producer = None
        super().close()

    @property
    def _writer(self) -> Producer:
        assert self._producer is not None, "open() comes first"
        return self._producer
