"""Writing to the topics beside a queue: on return the cluster has it."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from onefold.jobs import topics
from onefold.jobs.protocols import Job
from onefold.processor.core.errors import Retriable
from onefold.processor.io.admin import RECORD_BYTES_MAX

DELIVERY_TIMEOUT_MS = 10_000
# For an answer of a broker that is there.
_ANSWER_S = 2.0


class Writer:
    """Writes one record at a time, and waits for the answer.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
    """

    def __init__(self, client: Mapping[str, str]) -> None:
        self._producer = Producer(
            {
                **client,
                "enable.idempotence": True,
                "acks": "all",
                # Java's, so that a log lives where every other producer puts it.
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "message.max.bytes": RECORD_BYTES_MAX,
                "linger.ms": 0,
                "log_level": 0,
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
        """Put a job back into its queue. Raises `Retriable` when it may not be there."""
        key, value = topics.encode(job)
        self.write(topics.again_of(job.queue), key, value, [])

    def write(self, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]) -> None:
        """A record. Raises `Retriable` when it may not be there."""
        told: list[KafkaError | None] = []
        try:
            self._producer.produce(topic, value, key, headers=headers, on_delivery=lambda error, _: told.append(error))
            self._producer.flush(2 * DELIVERY_TIMEOUT_MS / 1000)
        except (BufferError, KafkaException) as error:
            raise Retriable(f"{topic} cannot be written to: {error}") from error
        if told != [None]:
            raise Retriable(f"{topic} cannot be written to: {told[0].str() if told and told[0] else 'no answer'}")
