"""What workers write to Kafka, to the topics beside a queue and to the log: on return the cluster has it.

None of it may come to a pipeline that was started over since. A check before the write would not do: a process may sleep between
the two. So each record is a transaction: first the cluster has it, and nobody sees it; then the worker sees that its session is
there; then it counts. A reset waits for the end of that session before it deletes the first topic. So a record that was sent
before is in a topic that is deleted with it; and who sent it after that sees no session, and nobody sees the record.
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
# For an answer of a broker that is there.
_ANSWER_S = 2.0
# To begin and to end a transaction.
_CALL_S = 10.0
# Readers of a topic wait for the end of what is open in it: of a worker that died, for so long, and until a broker looks for such
# transactions, which it does every 10 s by Kafka's default.
_TRANSACTION_TIMEOUT_MS = 15_000
# The beginning of the transactional ids.
_IDS = "onefold-work-"


class RecordWriter:
    """Writes one record at a time, and waits for the answer.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        still: called between sending and committing; what it raises ends the transaction, and nobody sees the record.
    """

    def __init__(self, client: Mapping[str, str], still: Callable[[], None]) -> None:
        self._still = still
        self._client = client
        self._is_ready = False
        self._producer = kafka_client.producer(
            {
                **client,
                # Of this writer alone: it fences nobody, and nobody fences it.
                "transactional.id": f"{_IDS}{uuid.uuid4()}",
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                # Java's, so that a log lives where every other producer puts it.
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "message.max.bytes": RECORD_BYTES_MAX,
                "linger.ms": 0,
            }
        )

    def partitions(self, topic: str) -> int:
        """How many a topic has; 0 where that is not known now."""
        try:
            found = self._producer.list_topics(topic, _ANSWER_S).topics
        except KafkaException:
            return 0
        return len(found[topic].partitions) if topic in found else 0

    def put(self, job: Job) -> None:
        """Put a job back into its queue. Raises what `write` does."""
        key, value = topics.encode(job)
        self.write(topics.again_of(job.queue), key, value, [])

    def write(self, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]) -> None:
        """A record.

        Raises:
            Retriable: it may not be there.
            Refused: Kafka does not allow it.
            Exception: what `still` raises.
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
        """On return the cluster has it, though nobody sees it yet."""
        told: list[KafkaError | None] = []
        self._producer.produce(topic, value, key, headers=headers, on_delivery=lambda error, _: told.append(error))
        self._producer.flush(2 * DELIVERY_TIMEOUT_MS / 1000)
        if not told:
            raise Retriable(Code.TOPIC_UNWRITABLE, f"{topic} cannot be written to: no answer")
        if told[0] is not None:
            raise self._failed(topic, told[0])

    def _failed(self, topic: str, error: KafkaError) -> Refused | Retriable:
        """What an error means. It may not say that the right to write is missing."""
        if kafka_client.unwritable(kafka_client.admin(self._client), [topic], _ANSWER_S):
            trouble = kafka_client.cannot(self._client, f"write {topic}")
            return Forbidden(trouble.code, trouble.sentence)
        return again_or_never(error, f"{topic} cannot be written to")

    def _abort(self) -> None:
        # Where it fails the next transaction does not begin, and says so; the cluster ends this one by itself.
        with suppress(KafkaException):
            self._producer.abort_transaction(_CALL_S)
