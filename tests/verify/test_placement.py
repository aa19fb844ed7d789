"""The judge's own partitioner: Kafka's published hash values, and where a real broker's client puts keys."""

from itertools import product

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.verify.partitioner import _EVIDENCE, Layout, murmur2, partition_of
from onefold.verify.record import Source

TOPIC = "onefold.verify.partitioner"
PARTITIONS = 7


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_has_the_values_of_kafkas_own_tests(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


def test_the_partition_of_a_key_is_where_kafkas_client_puts_it(bootstrap_servers: str) -> None:
    client = {"bootstrap.servers": bootstrap_servers}
    admin = AdminClient({**client})
    made = admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].exception()
    assert made is None or "exists" in str(made)
    landed: dict[str, int] = {}
    producer = Producer({**client, "partitioner": "murmur2_random"})

    def note(error: KafkaError | None, message: Message) -> None:
        key, partition = message.key(), message.partition()
        assert error is None
        assert key is not None
        assert partition is not None
        landed[key.decode()] = partition

    for number in (*range(300), -1, 2**63 - 1, -(2**63)):
        producer.produce(TOPIC, b"", str(number), on_delivery=note)
    assert producer.flush(30) == 0
    assert landed == {key: partition_of(key, PARTITIONS) for key in landed}
    assert len(landed) == 303


@pytest.mark.parametrize("before", [(1, 4, 6), (2, 3, 8), (3, 5, 12)])
def test_a_topic_to_which_partitions_were_added_twice_has_no_misplaced_records(before: tuple[int, ...]) -> None:
    layout, keys = Layout(before[-1]), [str(number) for number in range(100)]
    for offset, (partitions, key) in enumerate(product(before, keys)):
        layout.take(key, partition_of(key, partitions), offset, Source("in", 0, offset), {})
    assert [*layout.misplaced()] == []
    wrong = next(key for key in keys if all(partition_of(key, partitions) != 0 for partitions in range(2, 13)))
    layout.take(wrong, 0, 300, Source("in", 0, 300), {})
    assert [one.offset for one in layout.misplaced()] == [300]


def test_the_first_records_of_each_input_partition_are_evidence_of_the_number_of_partitions() -> None:
    layout = Layout(4)
    for offset in range(_EVIDENCE):
        assert not layout.knows(Source("in", 0, offset))
        layout.take("key", partition_of("key", 4), offset, Source("in", 0, offset), {})
    assert layout.knows(Source("in", 0, _EVIDENCE))
    assert not layout.knows(Source("in", 1, _EVIDENCE))
