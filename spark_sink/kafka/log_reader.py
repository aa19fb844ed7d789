"""A decision log as the sink's driver reads it, beside Spark: what is in a micro-batch is known before Spark has read it."""

import threading
import time
from collections import deque
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from onefold.spark_sink.decisions import Seen, seen
from onefold.spark_sink.errors import Rewind, Waiting
from onefold.spark_sink.landing.ledger import OffsetRange, Partition
from onefold.spark_sink.landing.protocols import Record

# How long Kafka may be silent about records that Spark says are there; as Spark's own reader (`spark/read.py`).
_SILENCE_S = 15.0
# Read ahead, in all: several batches of a steady load, and little of what a sink may use.
_AHEAD_KB = 16_384
_AT_ONCE = 1_000
# So long it may hold up whoever closes it.
_POLL_S = 0.1


class LogReader:
    """Reads every record from the offsets `start` on once, in order, and keeps of it what whoever decides needs.

    Args:
        kafka_options: librdkafka's.
        start: per partition of the log.
    """

    def __init__(self, bootstrap_servers: str, kafka_options: dict[str, str], start: dict[Partition, int]) -> None:
        self._servers = bootstrap_servers
        self._next = dict(start)
        self._read: dict[Partition, deque[Seen]] = {key: deque() for key in start}
        settings: dict[str, Any] = {
            **kafka_options,
            "bootstrap.servers": bootstrap_servers,
            "group.id": "onefold-sink-log",  # never joined: partitions are assigned by hand
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",  # as Spark, which says where a batch ends
            "queued.max.messages.kbytes": _AHEAD_KB,
            "check.crcs": True,
            "error_cb": lambda error: None,  # without one librdkafka writes to stderr; we raise our own sentence
            "log_level": 0,
        }
        # Whoever ends the query closes it, while Spark's thread may be in the middle of reading.
        self._using, self._closed = threading.Lock(), False
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(*key, offset) for key, offset in start.items()])

    def records(self, part: OffsetRange) -> list[Seen]:
        """All of a range that continues the one before of its partition.

        Raises:
            Waiting: Kafka does not give them.
            Rewind: the range does not begin where the one before has ended.
            Refused: one is of a newer Onefold.
        """
        if self._next.setdefault(part.key, part.start) != part.start:
            raise Rewind(
                f"{part.topic}/{part.partition} was read up to {self._next[part.key]}, and {part.start} is asked for"
            )
        read = self._read.setdefault(part.key, deque())
        heard = time.monotonic()
        while not read or read[-1].offset < part.end - 1:
            if self._read_on():
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise Waiting(f"Kafka at {self._servers} does not give {part.topic}/{part.partition}@{part.end - 1}")
        found: list[Seen] = []
        while read and read[0].offset < part.end:
            found.append(read.popleft())
        self._next[part.key] = part.end
        return found

    def close(self) -> None:
        """Let go of the connections. Whoever is reading is told so."""
        with self._using:
            if not self._closed:
                self._closed = True
                self._consumer.close()

    def _read_on(self) -> int:
        with self._using:
            if self._closed:
                raise Waiting("the query ends")
            messages = self._consumer.consume(1, _POLL_S)
            if messages:
                messages += self._consumer.consume(_AT_ONCE, 0)
        for message in messages:
            at: Any = message.topic(), message.partition(), message.offset()
            topic, partition, offset = at
            if (error := message.error()) is not None:
                raise Waiting(f"Kafka at {self._servers} cannot give {topic}/{partition}@{offset}: {error.str()}")
            value = message.value()
            fingerprint = Record(offset, message.key(), value, message.timestamp()[1]).fingerprint()
            self._read.setdefault((topic, partition), deque()).append(seen(offset, fingerprint, value))
        return len(messages)
