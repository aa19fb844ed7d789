"""Writing the ticks of a pipeline: inputs like others, by a plain producer and in no transaction."""

import time
from collections.abc import Iterable, Mapping

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onefold import kafka_client
from onefold.processor.core.ticks import Ticking, tick_record
from onefold.processor.core.topology import Topology

log = structlog.get_logger()

# A tick that cannot be written for so long is left out: a later one says more.
DELIVERY_TIMEOUT_MS = 5_000
# Of the ticks that wait at the end, and are not worth more waiting.
_CLOSE_TIMEOUT_S = 1.0


class TickWriter:
    """Writes the ticks of the tasks that run here: the only clock whose time a fold ever sees, and only as records.

    It never waits, and raises nothing: what cannot be written is left out, as a pause leaves ticks out.
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
        """Write what is due in these partitions, whose tasks have caught up since they were opened. Another task would
        find all its ticks at once, and the first before the records that have waited longer.
        """
        self.write(self._ticking.due(caught_up, time.time_ns() // 1_000_000))

    def write(self, ticks: Iterable[tuple[int, int]]) -> None:
        """The ticks (partition, at_ms)."""
        try:
            # Not `or`: a producer has a length, that of its queue, and is false while the queue is empty.
            producer = self._producer = self._new_producer() if self._producer is None else self._producer
            for partition, at_ms in ticks:
                key, value = tick_record(at_ms)
                producer.produce(self._topic, value, key, partition, on_delivery=self._told)
            producer.poll(0)
        except (BufferError, KafkaException) as error:
            # Also when the cluster has turned the producer away for good: the next one begins anew.
            self._producer = None
            self._say(str(error))

    def close(self) -> None:
        """Leave; a tick that is under way has a second."""
        if self._producer is not None:
            self._producer.flush(_CLOSE_TIMEOUT_S)
            self._producer = None

    def _new_producer(self) -> Producer:
        return kafka_client.producer(
            {
                **self._client,
                # Two of the same tick are recognised; this keeps their order.
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
        """Once, until it works again: the next tick would say the same."""
        if not self._fails:
            self._fails = True
            log.warning("timer ticks cannot be written, so timers are stalled", topic=self._topic, reason=reason)
