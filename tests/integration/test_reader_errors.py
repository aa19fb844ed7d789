"""A reader ends at any error among its records: librdkafka keeps to itself what passes."""

from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_client
from tests.support.infrastructure import delete_topics
from tests.support.processes import produce
from tests.support.proxy import FETCH, KafkaProxy
from tests.support.waiting import eventually

TOPIC = "readers.errors"


def test_a_broker_that_is_away_for_a_moment_is_no_error_among_the_records(
    client: dict[str, str], kafka_proxy: KafkaProxy
) -> None:
    admin = AdminClient({**client})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    heard: list[int] = []
    found: list[Message] = []
    settings = {
        "bootstrap.servers": kafka_proxy.bootstrap_servers,
        "error_cb": lambda error: heard.append(error.code()),
    }
    try:
        produce(client, TOPIC, [(b"key", b"1")])
        with closing(kafka_client.consumer(settings)) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])

            def read(until: bool) -> bool:
                found.extend(consumer.consume(10, 0.1))
                return until

            eventually(lambda: read(bool(found)), 20, "the first record is read")
            kafka_proxy.lose(FETCH)
            eventually(lambda: read(bool({*heard} & {*kafka_client.UNREACHABLE})), 20, "the client misses the broker")
            produce(client, TOPIC, [(b"key", b"2")])
            kafka_proxy.lose()
            eventually(lambda: read(len(found) > 1), 20, "the second record is read")
        assert [(message.error(), message.value()) for message in found] == [(None, b"1"), (None, b"2")]
    finally:
        delete_topics(admin, (TOPIC,))
