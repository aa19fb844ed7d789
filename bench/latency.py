"""How long an event takes from the producer's hand to a row that another connection of Postgres sees.

Events are produced at a steady rate, each on its own (no transaction, no waiting for company). A reader with a
connection of its own watches the ledger and, when a commit has moved it, selects the new rows of `runner.messages`: an
event has arrived when its row is in the answer. One clock, one process, so the differences are true. What is produced
while the JVM still compiles Spark does not count, and is told all the same: the median of every quarter of a minute,
from the first event on.
"""

import threading
import time
from itertools import groupby
from typing import Any

import psycopg
from confluent_kafka import Producer

from onefold.bench.meter import percentile
from onefold.bench.stand import Stand
from onefold.operate import positions
from onefold.proof.workloads import runner
from onefold.proof.workloads.shaping import Shape

# After the warm-up nothing counts until less than one second's worth of events is under way. What has not caught up so
# many seconds later will not, and is counted as it is.
_CATCH_UP_S = 60
_COURSE_S = 15
_LOOK_S = 0.004
_ARRIVE_S = 60.0
# Paced in steps of a few milliseconds: closer to life than one burst a second, and cheaper than a sleep an event. A
# real sleep: librdkafka rounds a poll of less than a millisecond down to none, and a producer that spins takes from the
# two cores that it is to measure (seen: 80 % of one).
_STEP_S = 0.005

#: (user_id, sequence_id): what identifies an event and its row
_Event = tuple[int, int]


def measure(stand: Stand, rate: int, seconds: float, seed: int, warm_up: float) -> dict[str, Any]:
    """The distribution of latencies in seconds, at `rate` events a second for `seconds` after `warm_up` seconds."""
    stand.say("starting processor and sink")
    stand.start("processor", "process", "runner")
    stand.start("sink", "sink", "runner")
    reader = _Reader(stand.dsn)
    stand.say(f"producing {rate:,} events a second: {warm_up:.0f} s of warm-up, then {seconds:.0f} s that count")
    try:
        produced, counted_from = _produce(stand, rate, seconds, seed, reader, warm_up)
        stand.wait(lambda: len(reader.seen) >= len(produced), _ARRIVE_S, "every event is in the table")
    finally:
        reader.stop()
    ways = [(at, reader.seen[event] - at) for event, at in produced.items()]
    latencies = sorted(way for at, way in ways if at >= counted_from)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {
        "events": len(latencies),
        "events_per_second": rate,
        "warm_up_seconds": round(counted_from - ways[0][0]),
        **{f"{name}_seconds": round(percentile(latencies, share), 3) for name, share in shares.items()},
        "max_seconds": round(latencies[-1], 3),
        f"p50_of_every_{_COURSE_S}_seconds_from_the_start": course(ways, _COURSE_S),
    }


def course(ways: list[tuple[float, float]], step: float) -> list[float]:
    """The median latency of each `step` seconds, from (moment of produce, latency) in order of the moments."""
    began = ways[0][0]
    steps = groupby(ways, key=lambda way: int((way[0] - began) // step))
    return [round(percentile(sorted(latency for _, latency in group), 0.5), 3) for _, group in steps]


def _produce(
    stand: Stand, rate: int, seconds: float, seed: int, reader: "_Reader", warm_up: float
) -> tuple[dict[_Event, float], float]:
    """Produce at a steady rate. Per event the moment at which it was handed to the client; the moment from which on
    they count.
    """
    settings = {"enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 2, "log_level": 0}
    producer = Producer({**stand.client, **settings})
    # Every event is accepted: an ignored one has no row, and would never arrive.
    inputs = runner.generate(seed, int(rate * (warm_up + _CATCH_UP_S + seconds)), shape=Shape(duplicates=0, late=0))
    sequences: dict[bytes, int] = {}
    produced: dict[_Event, float] = {}
    began, counted_from = time.time(), 0.0
    for number, given in enumerate(inputs):
        while began + number / rate > time.time():
            producer.poll(0)
            time.sleep(_STEP_S)
        if not counted_from and number % rate == 0 and _warm(number / rate - warm_up, number - len(reader.seen), rate):
            counted_from = time.time()
        elif counted_from and time.time() > counted_from + seconds:
            break
        key = given.key or b""
        sequences[key] = sequences.get(key, 0) + 1
        produced[int(key), sequences[key]] = time.time()
        producer.produce(given.topic, given.value, key)
    producer.flush(30)
    return produced, counted_from


def _warm(since_s: float, under_way: int, rate: int) -> bool:
    return since_s >= 0 and (under_way < rate or since_s >= _CATCH_UP_S)


class _Reader:
    """Another connection, which sees what is committed. `seen`: per event the moment at which its row was there."""

    def __init__(self, dsn: str) -> None:
        self.seen: dict[_Event, float] = {}
        self._dsn = dsn
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        rows = 'SELECT user_id, sequence_id FROM runner.messages WHERE partition = %s AND "offset" >= %s'
        at: dict[int, int] = {}
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._done.wait(_LOOK_S):
                for (topic, partition), offset in positions.landed_over(connection, "runner").items():
                    if topic == "runner.messages" and offset > at.get(partition, 0):
                        found = connection.execute(rows, [partition, at.get(partition, 0)]).fetchall()
                        now = time.time()
                        for event in found:
                            self.seen.setdefault(event, now)
                        at[partition] = offset
