"""Load at a steady rate while servers fail and recover."""

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
from onefold.workloads.shaping import StreamShape

RATE = 200.0  # events per second: frequent events in each partition, without a high load on a small machine
# Length of the stream that all runs share. A key seldom returns within a run, and often within a day of runs.
EVENTS = 1_000_000
# Some records in the wrong partition, and some undecodable, so that faults hit repartitioning and dead letters too.
SHAPE = StreamShape(keyless=0.02, hostile=0.005)
STEP_S = 0.02
CALL_S = 10.0


class Load(Sender):
    """Sender of generated events in the background, as a context manager.

    Events continue where the topic ends. A second run with the same seed sends the following events, because repeated ones
    would change no row.
    """

    def __init__(self, domain: str, settings: Settings, seed: int) -> None:
        events = _events(domain, settings, seed)
        super().__init__(kafka_client.producer(_client(settings)), events, RATE, STEP_S)


def _events(domain: str, settings: Settings, seed: int) -> Iterator[Any]:
    workload: Any = find()[domain].load_workload()
    told = loading.workload(domain)
    # Feedback topics are written by the pipeline, not by this sender.
    already = _records(tuple(topic for topic in told.inputs if topic not in told.fed), settings)
    # A generator without the parameter `shape` makes its own kind of events.
    shape = {"shape": SHAPE} if "shape" in inspect.signature(workload.generate).parameters else {}
    return islice(workload.generate(seed, EVENTS, **shape), already % EVENTS, None)


def _records(topics: tuple[str, ...], settings: Settings) -> int:
    """Number of records ever written to the topics. Raises UserError if Kafka does not answer."""
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
        "partitioner": "murmur2_random",  # Java's partitioner, so that a key has the same partition for every producer
        "message.max.bytes": RECORD_BYTES_MAX,
        "linger.ms": 5,
        "reconnect.backoff.max.ms": 1000,  # the recovery of the stack is measured, not the producer's retry interval
    }
