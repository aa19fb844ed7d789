"""Produce events without transactions: as fast as possible, or at a steady rate."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from confluent_kafka import Producer

#: librdkafka settings of a producer for many events.
FAST: dict[str, str | int | bool] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 20,
    "queue.buffering.max.messages": 200_000,
}

# Steps of a few milliseconds are more realistic than one burst each second, and cheaper than a sleep for each event.
_STEP_S = 0.005
_JOIN_S = 5.0
_FLUSH_S = 60.0

_T = TypeVar("_T")


#: Topic, key and value.
Input = tuple[str, bytes | None, bytes | None]


def produce(producer: Producer, topic: str, key: bytes | None, value: bytes | None) -> None:
    """Produce an input, and wait while the producer's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:
            producer.poll(_STEP_S)


def paced(producer: Producer, inputs: Iterable[_T], rate: float, step_s: float = _STEP_S) -> Iterator[_T]:
    """Yield each input when due, at `rate` inputs per second. Between inputs the producer is polled."""
    began = time.monotonic()
    for number, given in enumerate(inputs):
        while began + number / rate > time.monotonic():
            producer.poll(0)
            # A real sleep: librdkafka rounds a poll of less than a millisecond down to 0, and a spinning producer takes CPU
            # time from the measured processes.
            time.sleep(step_s)
        yield given


class Sender:
    """Produces inputs at a steady rate in a separate thread, as a context manager.

    Attributes:
        sent: the number of inputs that the producer has accepted.
    """

    def __init__(self, producer: Producer, inputs: Iterable[Input], rate: float, step_s: float = _STEP_S) -> None:
        self.sent = 0
        self._producer = producer
        self._due = paced(producer, inputs, rate, step_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)
        self._producer.flush(_FLUSH_S)

    def _run(self) -> None:
        for given in self._due:
            if self._stop.is_set():
                return
            produce(self._producer, *given)
            self.sent += 1
