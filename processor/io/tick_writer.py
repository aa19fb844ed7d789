"""Write the ticks of a pipeline. Ticks are inputs, written by a plain producer without transactions."""

import time
from collections.abc import Iterable, Mapping

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onefold import kafka_client
from onefold.processor.core.ticks import Ticking, tick_record
from onefold.processor.core.topology import Topology

log = structlog.get_logger()

# A tick is dropped after this time, since a later tick replaces it.
DELIVERY_TIMEOUT_MS = 5_000
# The time at close for the delivery of outstanding ticks.
_CLOSE_TIMEOUT_S = 1.0


class TickWriter:
    """The writer of the ticks of this process's tasks. A fold sees no other clock, and gets the time only as records.

    The writer never waits and never raises. A failed tick is dropped, which leaves a gap as a pause does.
    """

    def __init__(self, topology: Topology, client: Mapping[str, str]) -> None:
        assert topology.tick is not None, "there is a tick"
        assert topology.ticks is not None, "and its topic"
        self._ticking = Ticking(topology.tick.every_ms)
        self._topic = topology.ticks
        self._client = dict(client)
        self._producer: Producer | None = None
        self._fails = False

    def strike(self, caught_up: Iterable[int]) -> None:
        """Write the due ticks of the partitions, whose tasks must have caught up since their opening. Another task
        would get the first tick before older records of the inputs, and all missed ticks at once.
        """
        self.write(self._ticking.due(caught_up, time.time_ns() // 1_000_000))

    def write(self, ticks: Iterable[tuple[int, int]]) -> None:
        """Write the ticks, given as (partition, at_ms)."""
        try:
            # Not `or`: the length of a producer is that of its queue, so a producer with an empty queue is false.
            producer = self._producer = self._new_producer() if self._producer is None else self._producer
            for partition, at_ms in ticks:
                key, value = tick_record(at_ms)
                producer.produce(self._topic, value, key, partition, on_delivery=self._told)
            producer.poll(0)
        except (BufferError, KafkaException) as error:
            # Perhaps a fatal error of the producer: the next write creates a new one.
            self._producer = None
            self._say(str(error))

    def close(self) -> None:
        """Close the producer. Outstanding ticks have a second for their delivery."""
        if self._producer is not None:
            self._producer.flush(_CLOSE_TIMEOUT_S)
            self._producer = None

    def _new_producer(self) -> Producer:
        return kafka_client.producer(
            {
                **self._client,
                # The fold ignores a duplicate tick. Idempotence keeps the order.
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            }
        )

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._fails = False
        else:
            self._say(f"{error.name()}: {error.str()}")

    def _say(self, reason: str) -> None:
        """Log the first failure after a success, so that each tick does not repeat the same warning."""
        if not self._fails:
            self._fails = True
            log.warning("timer ticks cannot be written, so timers are stalled", topic=self._topic, reason=reason)
