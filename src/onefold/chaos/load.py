"""Events at a steady rate while servers come and go."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import islice
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from onefold import kafka_client, kafka_offsets
from onefold.config.errors import of_kafka
from onefold.config.settings import Settings
from onefold.operate.pacing import Sender
from onefold.pipelines import find
from onefold.processor.io.topics import RECORD_BYTES_MAX
from onefold.verify import loading
from onefold.workloads.shaping import Shape

RATE = 200.0  # events a second: each partition gets some every moment, and a small machine is not busy with them
# The stream that all runs are parts of. Large, so that keys come back seldom within a run and often within a day of runs.
EVENTS = 1_000_000
# Some records in the wrong partition, and some that nobody can read: faults hit repartitioning and dead letters as well.
SHAPE = Shape(keyless=0.02, hostile=0.005)
STEP_S = 0.02
CALL_S = 10.0


class Load(Sender):
    """Sends a workload's events in the background, as a context.

    The events go on where the topic ends: a second run with the same seed sends what comes after the first one's, and not
    the same again, which would change nothing and prove nothing.
    """

    def __init__(self, domain: str, settings: Settings, seed: int) -> None:
        events = _events(domain, settings, seed)
        super().__init__(kafka_client.producer(_client(settings)), events, RATE, STEP_S)


def _events(domain: str, settings: Settings, seed: int) -> Iterator[Any]:
    workload: Any = find()[domain].load_workload()
    told = loading.workload(domain)
    # What the pipeline feeds itself did not come from here.
    already = _records(tuple(topic for topic in told.inputs if topic not in told.fed), settings)
    # A workload may know nothing of shapes; its events come as it makes them.
    shape = {"shape": SHAPE} if "shape" in inspect.signature(workload.generate).parameters else {}
    return islice(workload.generate(seed, EVENTS, **shape), already % EVENTS, None)


def _records(topics: tuple[str, ...], settings: Settings) -> int:
    """How many have ever been written there. Raises UserError when Kafka does not say."""
    admin = kafka_client.admin(settings.client())
    try:
        places = kafka_offsets.partitions(admin, topics, CALL_S)
        if {topic for topic, _ in places} != {*topics}:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return sum(kafka_offsets.high_watermarks(admin, places, CALL_S).values())
    except KafkaException as error:
        what = f"the ends of {', '.join(topics)} cannot be read, so no load can begin"
        raise of_kafka(error, what, settings.client()) from None


def _client(settings: Settings) -> dict[str, str | int | bool]:
    return {
        **settings.client(),
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # Java's, so that a key lives where every other producer puts it
        "message.max.bytes": RECORD_BYTES_MAX,
        "linger.ms": 5,
        "reconnect.backoff.max.ms": 1000,  # what is measured is how soon the stack is back, not how soon we ask again
    }
