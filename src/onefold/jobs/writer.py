"""Writes the records of workers to Kafka: jobs and dead letters of a queue, and reports. On return, the cluster has the record.

No record may reach the pipeline after a reset. A check before the write is not sufficient, because the process may be paused
between check and write. Each record is therefore a transaction with three steps: send the record, check the worker's session in
PostgreSQL, commit.

A reset waits for the end of the session before deleting the first topic. The reset then deletes a record sent before, with its
topic. A worker that sends a record afterwards has no session, and aborts the transaction.
"""

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.jobs import topics
from onefold.jobs.protocols import Job
from onefold.processor.core.errors import Forbidden, Refused, Retriable
from onefold.processor.io.kafka_errors import again_or_never
from onefold.processor.io.topics import RECORD_BYTES_MAX

DELIVERY_TIMEOUT_MS = 10_000
# The time-out for the response of a running broker.
_ANSWER_S = 2.0
# The time-out for starting and ending a transaction.
_CALL_S = 10.0
# After a worker's crash, its open transaction blocks the readers of the topic for this time, plus the interval of the broker's
# check (10 s by Kafka's default).
_TRANSACTION_TIMEOUT_MS = 15_000
# The prefix of the transactional ids.
_IDS = "onefold-work-"


class RecordWriter:
    """Writes one record at a time, and waits for the acknowledgement.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        still: called between sending and committing. An exception aborts the transaction, and no reader sees the record.
    """

    def __init__(self, client: Mapping[str, str], still: Callable[[], None]) -> None:
        self._still = still
        self._client = client
        self._is_ready = False
        self._producer = kafka_client.producer(
            {
                **client,
                # A random id, so that no writer fences another writer.
                "transactional.id": f"{_IDS}{uuid.uuid4()}",
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                # Java's partitioner, so that a log has the same partition with every producer.
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "message.max.bytes": RECORD_BYTES_MAX,
                "linger.ms": 0,
            }
        )

    def partitions(self, topic: str) -> int:
        """The number of a topic's partitions. 0: unknown."""
        try:
            found = self._producer.list_topics(topic, _ANSWER_S).topics
        except KafkaException:
            return 0
        return len(found[topic].partitions) if topic in found else 0

    def put(self, job: Job) -> None:
        """Put a job into its queue again. Raises the errors of `write`."""
        key, value = topics.encode(job)
        self.write(topics.again_of(job.queue), key, value, [])

    def write(self, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]) -> None:
        """Write a record in a transaction.

        Raises:
            Retriable: the record may not be written.
            Refused: a right in Kafka is missing.
            Exception: the exception of `still`.
        """
        try:
            if not self._is_ready:
                self._producer.init_transactions(_CALL_S)
                self._is_ready = True
            self._producer.begin_transaction()
            self._send(topic, key, value, headers)
            self._still()
            self._producer.commit_transaction(_CALL_S)
        except KafkaException as error:
            self._abort()
            if error.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                trouble = kafka_client.cannot(self._client, f"write with the transactional ids {_IDS}*")
                raise Forbidden(trouble.code, trouble.sentence) from error
            raise self._failed(topic, error.args[0]) from error
        except BufferError as error:
            self._abort()
            raise Retriable(Code.TOPIC_UNWRITABLE, f"{topic} cannot be written to: {error}") from error
        except BaseException:
            self._abort()
            raise

    def _send(self, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]) -> None:
        """Send a record. On return, the cluster has the uncommitted record."""
        told: list[KafkaError | None] = []
        self._producer.produce(topic, value, key, headers=headers, on_delivery=lambda error, _: told.append(error))
        self._producer.flush(2 * DELIVERY_TIMEOUT_MS / 1000)
        if not told:
            raise Retriable(Code.TOPIC_UNWRITABLE, f"{topic} cannot be written to: no answer")
        if told[0] is not None:
            raise self._failed(topic, told[0])

    def _failed(self, topic: str, error: KafkaError) -> Refused | Retriable:
        """Convert an error. Checks the right to write, because the error may not name the missing right."""
        if kafka_client.unwritable(kafka_client.admin(self._client), [topic], _ANSWER_S):
            trouble = kafka_client.cannot(self._client, f"write {topic}")
            return Forbidden(trouble.code, trouble.sentence)
        return again_or_never(error, f"{topic} cannot be written to")

    def _abort(self) -> None:
        # After a failed abort, the next transaction fails at its start, and the cluster aborts this transaction after the
        # time-out.
        with suppress(KafkaException):
            self._producer.abort_transaction(_CALL_S)
