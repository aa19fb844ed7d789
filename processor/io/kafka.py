"""Kafka: the session of a task, with its inputs, transactions and changelog.

librdkafka lacks KIP-890: a request resent on a new connection can reach the broker after the *next* transaction has begun, and
commit or abort the wrong transaction. Therefore no transaction begins on a producer with a possible resent request.
After a sign of such a request (a lost connection, a request timeout, a slow call), the session finishes the current transaction
and replaces the producer. The new producer has the same transactional id, and the broker's new epoch rejects the late request.
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

# If no task takes over after a crash, an open transaction blocks readers of committed records for this long. The value must
# exceed the delivery timeout below, and the longest fold of a batch.
TRANSACTION_TIMEOUT_MS = 15_000
DELIVERY_TIMEOUT_MS = 10_000
# For one call into librdkafka. After a timeout of a commit, the same call again is the only legal call.
CALL_TIMEOUT_S = 5.0
# After a slower call, a request may have been resent.
AMBIGUOUS_CALL_S = 1.0
# The size of a produce request's batch before compression, below the default `max.message.bytes` of a topic.
BATCH_BYTES = 1_000_000
# The producer's queue, which librdkafka also limits to a gigabyte. A transaction may have more records: the session then
# waits for space.
QUEUE_MESSAGES = 2_000_000
# The longest time without progress of a restore. Less than the group's poll interval, so that the log shows the error.
RESTORE_STALL_S = 30.0
# A marker and aborted records may follow the last progress record. If these offsets have none, a longer range is read.
_TAIL = 20
# librdkafka's RD_KAFKA_PARTITION_UA: the partitioner chooses by the key.
UNASSIGNED = -1

# While the coordinator briefly aborts an open transaction, `init_transactions` fails with a retriable error. Within a call,
# librdkafka retries after a fixed 500 ms. A new call retries at once, so the first calls have a timeout of 20 ms each.
TAKING_OVER_S = (*[0.02] * 25, CALL_TIMEOUT_S * 4)

_AMBIGUOUS = ("FAIL", "REQTMOUT")


class AmbiguousRequests(logging.Handler):
    """A handler of librdkafka's log that collects signs of a resent request."""

    def __init__(self) -> None:
        super().__init__()
        self.signs: list[str] = []
        # A logger per session separates the signs of sessions, and keeps librdkafka's lines out of the program's log.
        self.logger = logging.getLogger(f"librdkafka.{id(self)}")
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        self.logger.handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the signs and print nothing: an important failure is also the error of a call."""
        message = record.getMessage()
        if message.startswith(_AMBIGUOUS):
            self.signs.append(message)


class KafkaSession(KafkaInputs):
    """The session of one task on a real cluster (see `core.abc.TransactionSession`).

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        reinitialise_when_ambiguous: False disables the protection against resent requests. Only its test sets False.
        partitions: see `KafkaInputs`.
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
        """Create a producer with a new epoch, which fences the previous owner and aborts its open transaction."""
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        settings = {
            **self._client,
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "enable.idempotence": True,
            "acks": "all",
            # Java's default partitioner, so that all producers agree on the partition of a key.
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 5,
            "batch.size": self._batch_bytes,
            "message.max.bytes": RECORD_BYTES_MAX,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            # The default of 100 ms, while the coordinator writes the last marker, would be most of a commit's time.
            "retry.backoff.ms": 20,
            # `AmbiguousRequests` needs the lines of level 6.
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
        """Return the identity and the settings of the changelog partition."""
        topic = self._topology.changelog
        return ChangelogIs(*identity(self._admin, topic, self.partition), tombstones_kept_s(self._admin, topic))

    def record_bytes_max(self) -> dict[str, int]:
        """Return the maximum bytes of a record, per topic written."""
        return record_bytes_max(self._admin, self._topology.written)

    def restore(self, *, stable: bool = False, start: int | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the committed records of the changelog partition, up to the high watermark, or the last stable offset.

        By default the last stable offset is not enough: while another process has an open transaction, a restore up to that
        offset would end with old states.
        """
        changelog = self._topology.changelog
        end = (stable_end if stable else high_watermark)(self._admin, changelog, self.partition)
        return self._changelog(OFFSET_BEGINNING if start is None else start, end)

    def last_progress(self, *, stable: bool = False) -> bytes | None:
        """Return the last committed progress record's value. Every transaction ends with one, near the partition's end."""
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
        """Begin a transaction. If a request may have been resent, replace the producer first, and return True."""
        if self._begun:
            raise Corrupted(Code.CHANGELOG_WRONG, "a transaction is open already")
        try:
            with raising("begin"):
                self._writer.poll(0)
                reinitialised = bool(self._ambiguous.signs) and self._reinitialise_when_ambiguous
                if reinitialised:
                    # A batch over the topic's `max.message.bytes` may be the cause of the replacement.
                    self._batch_bytes = min(BATCH_BYTES, *self.record_bytes_max().values())
                    self._producer = self._new_producer()
                    self.reinitialised += 1
                self._writer.begin_transaction()
        except Abortable as error:
            # No transaction has begun, so the caller has nothing to abort and repeat.
            raise Corrupted(error.code, str(error)) from error
        self._begun = True
        return reinitialised

    def produce(self, writes: Iterable[Write]) -> None:
        """Add records to the open transaction. If the producer's queue is full, wait for space."""
        self._produce(writes, None)

    def produce_progress(self, write: Write) -> None:
        """Add the progress record. The delivery report, which the commit waits for, sets `progress_next`."""
        self.progress_next = None
        self._produce([write], self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        # The offset of a resent record may be unknown.
        if error is None and offset is not None and offset >= 0:
            self.progress_next = offset + 1

    def _produce(self, writes: Iterable[Write], delivered: Callable[[KafkaError | None, Message], None] | None) -> None:
        add: Callable[..., None] = self._writer.produce  # the type stub rejects headers whose values are all bytes
        try:
            for topic, partition, key, value, headers in writes:
                at = UNASSIGNED if partition is None else partition
                # Positional arguments, since keyword arguments are slow here. The timestamp 0 means now.
                try:
                    add(topic, value, key, at, delivered, None, 0, headers)
                except BufferError:
                    self._wait_for_room(partial(add, topic, value, key, at, delivered, None, 0, headers))
        except KafkaException as error:
            # A failed produce does not fail the transaction. A commit now would omit the record.
            cause = error.args[0]
            if cause.code() in FENCED:
                raise translate(cause, "produce") from error
            too_much = cause.code() in TOO_MUCH
            kind, code = (TooMuch, Code.TOO_LARGE) if too_much else (Abortable, Code.TRANSACTION_LOST)
            raise kind(code, f"a record could not be produced: {cause.name()}: {cause.str()}") from error

    def _wait_for_room(self, add: Callable[[], None]) -> None:
        deadline = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000
        while time.monotonic() < deadline:
            with contextlib.suppress(*LOST_IN_A_CALLBACK):  # the next call raises the error
                self._writer.poll(0.05)
            with contextlib.suppress(BufferError):
                add()
                return
        raise TooMuch(Code.TOO_LARGE, f"the producer's queue was full for {DELIVERY_TIMEOUT_MS / 1000:g} s")

    def commit(self) -> None:
        """Commit. After a timeout, repeat the same call, the only legal one, until the broker's own timeout has passed."""
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
        # Delivery may be slow for good reasons. Only a slow commit call is a sign of a resent request, so the flush comes
        # first. The flush may raise an error of a fenced producer. An error lost in a callback is raised by the commit.
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
        """Abort, and ignore errors: the next `begin` replaces the producer, which also ends the transaction."""
        self._begun = False
        if self._producer is None:
            return
        with contextlib.suppress(KafkaException, *LOST_IN_A_CALLBACK):
            self._producer.abort_transaction(CALL_TIMEOUT_S)
        self._ambiguous.signs.append("a transaction was aborted")

    def close(self) -> None:
        """Abort an open transaction, so that readers need not wait for its timeout, and close the clients."""
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
