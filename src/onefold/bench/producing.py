"""Producers of the benches: as fast as possible, or at a steady rate."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from confluent_kafka import Producer

from onefold.workloads.shaping import Input

#: librdkafka settings of a producer for many events.
FAST: dict[str, str | int | bool] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 20,
    "queue.buffering.max.messages": 200_000,
}

# Paced in steps of a few milliseconds: closer to life than one burst a second, and cheaper than a sleep an event.
_STEP_S = 0.005

_T = TypeVar("_T")


def produce(producer: Producer, given: Input) -> None:
    """Produce an input, and wait while the producer's queue is full."""
    while True:
        try:
            producer.produce(given.topic, given.value, given.key)
            return
        except BufferError:
            producer.poll(_STEP_S)


def paced(producer: Producer, inputs: Iterable[_T], rate: int, step_s: float = _STEP_S) -> Iterator[_T]:
    """Yield each input when it is due, at `rate` a second. The producer is polled in the time between."""
    began = time.monotonic()
    for number, given in enumerate(inputs):
        while began + number / rate > time.monotonic():
            producer.poll(0)
            # A real sleep: librdkafka rounds a poll of less than a millisecond down to none, and a producer that spins takes
            # processor time from what is measured.
            time.sleep(step_s)
        yield given
