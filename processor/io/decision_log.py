"""Kafka: one partition of a decision log.

The producer is idempotent and never transactional: an open transaction of a replica that hangs would hide what follows it
from all the others. Its acknowledgement says nothing: what is decided is what is read back.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.abc import Identity
from onefold.processor.core.errors import Corrupted, Retriable, TooMuch
from onefold.processor.io.admin import DECISION_BYTES_MAX, connect, delete_before, identity, offset_at
from onefold.processor.io.kafka_errors import TOO_MUCH, translate
from onefold.processor.io.reading import position_after

# A proposal that could not be sent for so long is given up; the next one says the same, if it is still true.
DELIVERY_TIMEOUT_MS = 10_000
# The broker answers as soon as there is a record: each decision is waited for.
FETCH_WAIT_MS = 100


class KafkaDecisionLog:
    """See `core.decision_log.DecisionLog`.

    Args:
        topic: of the decision log.
        task: whose log it is: the number of a partition.
        client: librdkafka settings, at least `bootstrap.servers`.
        admin: as of `KafkaInputs`.
    """

    def __init__(self, topic: str, task: int, client: Mapping[str, str], admin: AdminClient | None = None) -> None:
        self._topic = topic
        self._client = dict(client)
        # Not `or`: a client has a length, that of its queue, and is false while the queue is empty.
        self._admin = connect(self._client) if admin is None else admin
        self._partition = task
        self._failure: KafkaError | None = None
        self._consumer: Consumer | None = None
        self._producer = kafka_client.producer(
            {
                **self._client,
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

    def identity(self) -> Identity:
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
        try:
            self._producer.produce(self._topic, value, partition=self._partition, on_delivery=self._on_delivery)
        except BufferError:
            raise Retriable(
                Code.TOPIC_UNWRITABLE, "the producer's queue is full: nothing that was appended is answered"
            ) from None
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in TOO_MUCH:
                raise TooMuch(
                    Code.TOO_LARGE, f"a proposal could not be appended: {cause.name()}: {cause.str()}"
                ) from error
            raise translate(cause, "appending a proposal") from error
        self._producer.poll(0)

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """Offset and value of the records that come next, in order; waits at most so long for the first."""
        assert self._consumer is not None, "seek() comes first"
        self._raise_failure()
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
        self._producer.purge()
        self._producer.flush(1.0)

    def _on_delivery(self, error: KafkaError | None, _: object) -> None:
        if error is not None and error.code() != KafkaError._PURGE_QUEUE:
            self._failure = error

    def _raise_failure(self) -> None:
        self._producer.poll(0)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if failure.code() in TOO_MUCH:
                raise TooMuch(Code.TOO_LARGE, f"a proposal could not be appended: {failure.name()}: {failure.str()}")
            raise translate(failure, "appending a proposal")
