"""While a partition has no leader, its offsets are asked for again.

librdkafka returns Kafka's error then, an error of its own, or no error and no offset. The last of them came once in some hundred
questions to a broker that was killed and started again: here the answer of a real broker is taken from the clients.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_client, kafka_offsets
from onefold.operate import positions
from onefold.processor.core.topology import Topology
from onefold.processor.io import admin
from onefold.spark_sink.kafka.topics import Topics
from onefold.verify.log import Log
from tests.support.proxy import KafkaProxy
from tests.support.waiting import PATIENCE_S

MakeDomain = Callable[..., Topology]
Client = dict[str, str]
UPDATES = "runner.updates"
PLACE = UPDATES, 0
MEANWHILE = "made.meanwhile"
ANSWER_S = 20.0

ASKS: dict[str, Callable[[Client], object]] = {
    "which topic it is": lambda client: admin.identity(AdminClient({**client}), UPDATES, 0),
    "an offset of a time": lambda client: admin.offset_at(AdminClient({**client}), UPDATES, 0, 0),
    "a stable end": lambda client: admin.stable_end(AdminClient({**client}), UPDATES, 0),
    "how far all is": lambda client: positions.stable_ends(AdminClient({**client}), [UPDATES]),
    "the sink": lambda client: Topics(client["bootstrap.servers"], {}).ends([UPDATES]),
    "what a topic of the sink holds": lambda client: Topics(client["bootstrap.servers"], {}).reach([UPDATES]),
    "the judge": lambda client: Log(client, [UPDATES]).stable_ends(),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_an_offset_that_nobody_told_is_asked_for_again(
    ask: Callable[[Client], object], fresh_domain: MakeDomain, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_domain("runner")
    answered = ask(client)
    told = AdminClient.list_offsets
    taken: list[Any] = []

    def list_offsets(self: AdminClient, asked: Any, **options: Any) -> dict[Any, "Future[Any]"]:
        answers = told(self, asked, **options)
        if not taken:
            taken.append(asked)
            for place, answer in answers.items():
                answer.result()
                answers[place] = Future()
                answers[place].set_result(SimpleNamespace(offset=OFFSET_INVALID))
        return answers

    monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
    assert ask(client) == answered
    assert taken


@pytest.mark.parametrize(
    "error", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART]
)
def test_a_partition_whose_leader_moves_is_asked_again(
    error: int, fresh_domain: MakeDomain, kafka_proxy: KafkaProxy
) -> None:
    fresh_domain("runner")
    asks = kafka_client.admin({"bootstrap.servers": kafka_proxy.bootstrap_servers})
    kafka_proxy.fail_offsets(error, times=2)
    assert kafka_offsets.stable_ends(asks, [PLACE], ANSWER_S) == {PLACE: 0}
    kafka_proxy.fail_offsets(error, times=1)
    with closing(kafka_client.consumer({"bootstrap.servers": kafka_proxy.bootstrap_servers})) as consumer:
        assert kafka_offsets.bounds(consumer, PLACE, ANSWER_S) == (0, 0)


def test_a_partition_that_stays_without_a_leader_is_an_error_in_time(
    fresh_domain: MakeDomain, kafka_proxy: KafkaProxy
) -> None:
    fresh_domain("runner")
    asks = kafka_client.admin({"bootstrap.servers": kafka_proxy.bootstrap_servers})
    kafka_proxy.fail_offsets(KafkaError.NOT_LEADER_FOR_PARTITION, times=1_000)
    with pytest.raises(KafkaException, match="NOT_LEADER_FOR_PARTITION"):
        kafka_offsets.stable_ends(asks, [PLACE], 0.5)


def test_an_error_that_no_leader_would_end_is_not_asked_again(
    fresh_domain: MakeDomain, kafka_proxy: KafkaProxy
) -> None:
    fresh_domain("runner")
    asks = kafka_client.admin({"bootstrap.servers": kafka_proxy.bootstrap_servers})
    kafka_proxy.fail_offsets(KafkaError.TOPIC_AUTHORIZATION_FAILED, times=1)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        kafka_offsets.stable_ends(asks, [PLACE], ANSWER_S)


def test_a_topic_that_is_made_meanwhile_is_asked_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = kafka_client.admin(client)
    told = AdminClient.list_offsets

    def list_offsets(self: AdminClient, asked: Any, **options: Any) -> dict[Any, "Future[Any]"]:
        answers = told(self, asked, **options)
        if any(answer.exception() for answer in answers.values()) and MEANWHILE not in self.list_topics().topics:
            self.create_topics([NewTopic(MEANWHILE, 1)])[MEANWHILE].result()
        return answers

    monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
    try:
        assert kafka_offsets.high_watermarks(asks, [(MEANWHILE, 0)], ANSWER_S) == {(MEANWHILE, 0): 0}
    finally:
        asks.delete_topics([MEANWHILE])[MEANWHILE].result()


GONE: dict[str, Callable[[Client, float], object]] = {
    "an admin client": lambda client, seconds: kafka_offsets.stable_ends(
        AdminClient({**client}), [("gone", 0)], seconds
    ),
    "a consumer": lambda client, seconds: kafka_offsets.bounds(kafka_client.consumer(client), ("gone", 0), seconds),
}


@pytest.mark.parametrize("ask", GONE.values(), ids=GONE)
def test_a_topic_that_was_deleted_is_not_waited_for(ask: Callable[[Client, float], object], client: Client) -> None:
    """Who looks at a pipeline that is started over asks after deleted topics again and again."""
    errors: list[BaseException] = []

    def asks() -> None:
        try:
            ask(client, 600.0)
        except KafkaException as error:
            errors.append(error)

    asking = threading.Thread(target=asks, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    assert "NKNOWN" in str(errors[0])


def test_a_consumer_that_is_too_slow_for_the_bounds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client returns None then."""
    with closing(kafka_client.consumer({"bootstrap.servers": "127.0.0.1:9"})) as consumer:
        monkeypatch.setattr(consumer, "get_watermark_offsets", lambda *_, **__: None)
        with pytest.raises(KafkaException, match="_TIMED_OUT"):
            kafka_offsets.bounds(consumer, PLACE, 1.0)
