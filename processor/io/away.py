"""Noticing that no broker is there any more, which nothing tells a consumer that waits."""

from confluent_kafka import Consumer, KafkaError, KafkaException

from onefold.processor.core.errors import Retriable


class Away:
    """Of one consumer, whose `error_cb` is `heard`.

    Args:
        topic: one that the consumer reads.
        answer_s: how long a broker may take to describe it.
    """

    def __init__(self, topic: str, answer_s: float) -> None:
        self._topic, self._answer_s = topic, answer_s
        self._trouble: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """An error that the client tells: once, when the last broker is gone."""
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            self._trouble = error

    def check(self, consumer: Consumer) -> None:
        """Raises `Retriable` when that was heard and still holds."""
        if self._trouble is None:
            return
        try:
            consumer.list_topics(self._topic, timeout=self._answer_s)
        except KafkaException:
            raise Retriable(f"Kafka does not answer: {self._trouble.str()}") from None
        self._trouble = None
