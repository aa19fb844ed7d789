"""Detect that no broker is reachable. A waiting consumer gets no error in this case."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.processor.io.kafka_errors import check_reachable


class Away:
    """A watch on one consumer. The consumer's `error_cb` must be `heard`.

    Args:
        topic: a topic that the consumer reads.
        answer_s: the time limit for a broker to describe the topic.
        client: the consumer's settings.
    """

    def __init__(self, topic: str, answer_s: float, client: Mapping[str, Any]) -> None:
        self._topic, self._answer_s, self._client = topic, answer_s, client
        self._trouble: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """Keep an error of the client, which the client reports once, after the loss of the last broker."""
        if error.code() in kafka_client.UNREACHABLE:
            self._trouble = error

    def check(self, consumer: Consumer) -> None:
        """Raise `Retriable` if such an error was reported and no broker responds now."""
        if self._trouble is None:
            return
        check_reachable(self._client)
        try:
            consumer.list_topics(self._topic, timeout=self._answer_s)
        except KafkaException:
            raise Retriable(Code.KAFKA_SILENT, f"Kafka does not answer: {self._trouble.str()}") from None
        self._trouble = None
