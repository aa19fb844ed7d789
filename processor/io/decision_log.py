"""Kafka: one partition of a decision log, and the producer that appends to all of them.

The producer is idempotent and never transactional: an open transaction of a replica that hangs would hide what follows it
from all the others. Its acknowledgement says nothing: what is decided is what is read back.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import Corrupted, ProcessorError, Retriable, TooMuch
from onefold.processor.io.admin import connect, delete_before, identity, offset_at
from onefold.processor.io.kafka_errors import TOO_MUCH, translate
from onefold.processor.io.range_reader import position_after
from onefold.processor.io.topics import DECISION_BYTES_MAX

# A proposal that could not be sent for so long is given up; the next one says the same, if it is still true.
DELIVERY_TIMEOUT_MS = 10_000
# The broker answers as soon as there is a record: each decision is waited for.
FETCH_WAIT_MS = 100


class Appender:
    """Appends records to decision logs, for all tasks of a process.

    Attributes:
        failed: whether a record was not delivered for another reason than its size. The producer may take no more records: the
            next life of a task has a new appender.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self.failed = False
        self._producer = kafka_client.producer(
            {
                **client,
                "enable.idempotence": True,
                "acks": "all",
                # A decision is waited for: nothing is gained by gathering them.
                "linger.ms": 0,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "message.max.bytes": DECISION_BYTES_MAX,
                "compression.type": "lz4",
                "socket.nagle.disable": True,
            }
        )

    def append(self, topic: str, partition: int, value: bytes, failed: Callable[[ProcessorError], None]) -> None:
        """Send a record off. Raises `TooMuch`, or what else is known at once.

        Args:
            failed: gets the reason if the record is not delivered, in a later call of any task.
        """

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed(self._meaning(error))

        try:
            self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
        except BufferError:
            raise Retriable(
                Code.TOPIC_UNWRITABLE, "the producer's queue is full: nothing that was appended is answered"
            ) from None
        except KafkaException as error:
            raise self._meaning(error.args[0]) from error
        self.poll()

    def poll(self) -> None:
        """Hear what was not delivered."""
        self._producer.poll(0)

    def _meaning(self, error: KafkaError) -> ProcessorError:
        if error.code() in TOO_MUCH:
            return TooMuch(Code.TOO_LARGE, f"a proposal could not be appended: {error.name()}: {error.str()}")
        self.failed = True
        return translate(error, "appending a proposal")


class KafkaDecisionLog:
    """See `core.decision_log.DecisionLog`.

    Args:
        topic: of the decision log.
        task: whose log it is: the number of a partition.
        client: librdkafka settings, at least `bootstrap.servers`.
        admin: as of `KafkaInputs`.
        appender: which may have other users. None: a new one.
    """

    def __init__(
        self,
        topic: str,
        task: int,
        client: Mapping[str, str],
        admin: AdminClient | None = None,
        appender: Appender | None = None,
    ) -> None:
        self._topic = topic
        self._client = dict(client)
        # Not `or`: a client has a length, that of its queue, and is false while the queue is empty.
        self._admin = connect(self._client) if admin is None else admin
        self._partition = task
        self._failure: ProcessorError | None = None
        self._consumer: Consumer | None = None
        self._appender = appender or Appender(client)

    def identity(self) -> PartitionIdentity:
        """Which topic it is now, and what it holds up to the high watermark."""
        return identity(self._admin, self._topic, self._partition)

    def seek(self, offset: int) -> None:
        """Read from there on."""
        if self._consumer is None:
            self._consumer = kafka_client.consumer(
                {
                    **self._client,
                    "fetch.min.bytes": 1,
                    "fetch.wait.max.ms": FETCH_WAIT_MS,
                    # How soon fetching goes on after the queue was full; a second by default.
                    "fetch.queue.backoff.ms": 5,
                    "socket.nagle.disable": True,
                }
            )
            with contextlib.suppress(KafkaException):
                # Who knows no broker yet asks for the partition again half a second later.
                self._consumer.list_topics(self._topic, timeout=1.0)
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def append(self, value: bytes) -> None:
        """Send a record off."""
        self._appender.append(self._topic, self._partition, value, self._failed)

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """Offset and value of the records that come next, in order; waits at most so long for the first."""
        assert self._consumer is not None, "seek() comes first"
        self._appender.poll()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        messages = self._consumer.consume(1, timeout_s)
        if messages:
            messages += self._consumer.consume(1_000, 0)
        found: list[tuple[int, bytes | None]] = []
        for message in messages:
            error = message.error()
            if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise Corrupted(
                    Code.DECISIONS_LOST,
                    "the next decisions in the log were deleted meanwhile: starting from the changelog",
                )
            offset = position_after(message, "reading the decision log") - 1
            if error is None:
                found.append((offset, message.value()))
        return found

    def older_than(self, age_s: float) -> int:
        """All records before that offset are older than so many seconds, by their senders' clocks."""
        at_ms = round((time.time() - age_s) * 1000)
        return offset_at(self._admin, self._topic, self._partition, at_ms)

    def delete_before(self, offset: int) -> None:
        """Delete the records before that offset. The broker frees whole segments, some minutes later."""
        delete_before(self._admin, self._topic, self._partition, offset)

    def close(self) -> None:
        """Leave; what was sent off and not answered may lie there or not."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _failed(self, error: ProcessorError) -> None:
        self._failure = error
