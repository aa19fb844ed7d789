"""Keys live where Kafka's own partitioner puts them."""

import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, as no checker sees
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.io.partitioner import partition_of
from onefold.processor.testing import partition


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2_agrees_with_kafkas_published_vectors(data: bytes, expected: int) -> None:
    """The vectors are those of Kafka's own unit test."""
    assert expected % 2**32 == partition.murmur2(data)


@given(st.text(), st.integers(1, 64))
def test_home_is_a_partition(key: str, partitions: int) -> None:
    """Every key has a partition, in range, and the simulated log has it in the same place."""
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == partition.partition_of(key, partitions)


def test_home_agrees_with_the_client_that_writes(client: dict[str, str]) -> None:
    """librdkafka's murmur2_random puts a key where `partition_of` says."""
    topic = f"partitions-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({**client})
    admin.create_topics([NewTopic(topic, 7, 1)])[topic].result()
    landed: dict[bytes | None, int | None] = {}
    producer = Producer({**client, "partitioner": "murmur2_random"})
    for number in range(-50, 200):
        producer.produce(
            topic, b"", str(number), on_delivery=lambda _, sent: landed.update({sent.key(): sent.partition()})
        )
    producer.flush(20)

    assert {str(number).encode(): partition_of(str(number), 7) for number in range(-50, 200)} == landed
