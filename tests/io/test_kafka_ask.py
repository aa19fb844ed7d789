"""A question that any broker can answer goes to another one when the first is silent."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from onefold import kafka_ask


@dataclass
class Metadata:
    """As a client has them."""

    controller_id: int
    brokers: dict[int, None] = field(default_factory=lambda: dict.fromkeys((1, 2, 3)))


class Cluster:
    """A client of three brokers, of which only some answer. The client asks the broker that its last metadata named."""

    def __init__(self, named: list[int], live: set[int], error: int = KafkaError._TIMED_OUT) -> None:
        self._named, self._live, self._error = iter(named), live, error
        self._controller = next(self._named)
        self.asked: list[int] = []

    def list_topics(self, timeout: float) -> Metadata:
        self._controller = next(self._named)
        return Metadata(self._controller)

    def ask(self, seconds: float) -> dict[str, "Future[int]"]:
        self.asked.append(self._controller)
        future: Future[int] = Future()
        if self._controller in self._live:
            future.set_result(self._controller)
        else:
            future.set_exception(KafkaException(KafkaError(self._error)))
        return {"topic": future}

    def answer(self) -> int:
        return kafka_ask.any_broker(cast("AdminClient", cast("Any", self)), self.ask, 60.0)()["topic"].result()


@pytest.mark.parametrize("error", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT])
def test_the_next_broker_is_asked_until_one_answers(error: int) -> None:
    """The first broker is not known. A later one that was silent is not asked again while others may answer."""
    cluster = Cluster([1, 1, 1, 1, 3], {3}, error)
    assert cluster.answer() == 3
    assert cluster.asked == [1, 1, 3]


def test_a_live_broker_is_asked_once() -> None:
    cluster = Cluster([2], {2})
    assert cluster.answer() == 2
    assert cluster.asked == [2]


def test_when_all_were_silent_all_are_asked_again() -> None:
    """They may only have been busy."""
    cluster = Cluster([1, 1, 2, 3, 2], set())
    with pytest.raises(StopIteration):
        cluster.answer()
    assert cluster.asked == [1, 1, 2, 3, 2]


def test_an_answer_that_is_an_error_is_an_answer() -> None:
    cluster = Cluster([1], set(), KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(KafkaException, match="Unknown topic"):
        cluster.answer()
    assert cluster.asked == [1]
