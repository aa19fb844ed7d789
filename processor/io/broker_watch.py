"""Noticing that no broker is there any more, which nothing tells a consumer that waits."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.processor.io.kafka_errors import check_reachable


class Away:
    """Of one consumer, whose `error_cb` is `heard`.

    Args:
        topic: one that the consumer reads.
        answer_s: how long a broker may take to describe it.
        client: the consumer's settings.
    """

    def __init__(self, topic: str, answer_s: float, client: Mapping[str, Any]) -> None:
        self._topic, self._answer_s, self._client = topic, answer_s, client
        self._trouble: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """An error that the client tells: once, when the last broker is gone."""
        if error.code() in kafka_client.UNREACHABLE:
            self._trouble = error

    def check(self, consumer: Consumer) -> None:
        """Raises `Retriable` when that was heard and still holds."""
        if self._trouble is None:
            return
        check_reachable(self._client)
        try:
            consumer.list_topics(self._topic, timeout=self._answer_s)
        except KafkaException:
            raise Retriable(Code.KAFKA_SILENT, f"Kafka does not answer: {self._trouble.str()}") from None
        self._trouble = None
