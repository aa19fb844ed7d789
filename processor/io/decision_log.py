"""Kafka: one partition of a decision log, and the producer that appends to the decision logs of all tasks.

The producer is idempotent and never transactional: the open transaction of an unresponsive replica would block the readers of
all replicas. The acknowledgement has no meaning: the records read back decide.
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

# An undelivered proposal is given up after this time. The next proposal has the same content, if still valid.
DELIVERY_TIMEOUT_MS = 10_000
# The broker answers a fetch at the first record, since a replica waits for each decision.
FETCH_WAIT_MS = 100


class Appender:
    """The producer of records for decision logs, for all tasks of a process.

    Attributes:
        failed: whether a record was not delivered, for another reason than its size. The producer may then accept no more
            records, so a restarted task gets a new appender.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self.failed = False
        self._producer = kafka_client.producer(
            {
                **client,
                "enable.idempotence": True,
                "acks": "all",
                # A replica waits for each decision, so batching has no benefit.
                "linger.ms": 0,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "message.max.bytes": DECISION_BYTES_MAX,
                "compression.type": "lz4",
                "socket.nagle.disable": True,
            }
        )

    def append(self, topic: str, partition: int, value: bytes, failed: Callable[[ProcessorError], None]) -> None:
        """Send a record. Raises `TooMuch`, or another error that is known at once.

        Args:
            failed: gets the reason if the record is not delivered, during a later call of any task.
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
        """Process delivery reports."""
        self._producer.poll(0)

    def _meaning(self, error: KafkaError) -> ProcessorError:
        if error.code() in TOO_MUCH:
            return TooMuch(Code.TOO_LARGE, f"a proposal could not be appended: {error.name()}: {error.str()}")
        self.failed = True
        return translate(error, "appending a proposal")


class KafkaDecisionLog:
    """The decision log of one task (see `core.decision_log.DecisionLog`).

    Args:
        topic: the topic of the decision log.
        task: the task, which is the number of the partition.
        client: librdkafka settings, at least `bootstrap.servers`.
        admin: see `KafkaInputs`.
        appender: a producer, perhaps shared. None: a new one.
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
        # Not `or`: the length of a client is that of its queue, so a client with an empty queue is false.
        self._admin = connect(self._client) if admin is None else admin
        self._partition = task
        self._failure: ProcessorError | None = None
        self._consumer: Consumer | None = None
        self._appender = appender or Appender(client)

    def identity(self) -> PartitionIdentity:
        """Return the topic's present id, and the partition's offsets up to the high watermark."""
        return identity(self._admin, self._topic, self._partition)

    def seek(self, offset: int) -> None:
        """Set the offset to read next."""
        if self._consumer is None:
            self._consumer = kafka_client.consumer(
                {
                    **self._client,
                    "fetch.min.bytes": 1,
                    "fetch.wait.max.ms": FETCH_WAIT_MS,
                    # The pause of fetching after the queue was full. The default is a second.
                    "fetch.queue.backoff.ms": 5,
                    "socket.nagle.disable": True,
                }
            )
            with contextlib.suppress(KafkaException):
                # A client that knows no broker repeats the partition's request only after half a second.
                self._consumer.list_topics(self._topic, timeout=1.0)
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def append(self, value: bytes) -> None:
        """Send a record."""
        self._appender.append(self._topic, self._partition, value, self._failed)

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """Return offset and value of the next records, in order. Waits at most `timeout_s` for the first record."""
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
        """Return an offset. All records before the offset are older than `age_s` by their senders' clocks."""
        at_ms = round((time.time() - age_s) * 1000)
        return offset_at(self._admin, self._topic, self._partition, at_ms)

    def delete_before(self, offset: int) -> None:
        """Delete the records before the offset. The broker frees whole segments, some minutes later."""
        delete_before(self._admin, self._topic, self._partition, offset)

    def close(self) -> None:
        """Close the clients. An unacknowledged record may or may not be in the log."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _failed(self, error: ProcessorError) -> None:
        self._failure = error
