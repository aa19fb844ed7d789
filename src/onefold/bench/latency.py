"""End-to-end latency: from the producer's call to visibility in another connection of PostgreSQL.

Events are produced at a steady rate, one by one and without transactions. Every output record names the input record that
caused it. A consumer reads the outputs. A reader with a separate connection watches the ledger, which changes in the same
transaction as the rows. An event has arrived when the offset in the ledger is beyond the event's last output. Events
without output change no row, and are left out. All times come from one clock.

Events produced while the JVM still compiles Spark do not count. The course of medians, one per quarter of a minute, shows
them from the first event on.
"""

import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from itertools import groupby
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from onefold import kafka_client, postgres
from onefold.bench.cpu import percentile
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.workload import MeasuredPipeline
from onefold.operate import offsets
from onefold.operate.offsets import Place
from onefold.operate.pacing import paced
from onefold.operate.pipelines import found
from onefold.verify.record import Source, source_of
from onefold.verify.writer_identity import SOURCE_HEADER

# After the warm-up, counting begins when an arriving event is younger than a second, at the latest after this many seconds.
_CATCH_UP_S = 60
_COURSE_S = 15
_ASK_EVERY_S = 0.004
_ARRIVE_S = 120.0  # Spark's first batch, on a busy machine
_LAG_ASK_EVERY_S = 0.5

_READ_MAX = 5_000


def measure(
    environment: BenchmarkEnvironment, workload: MeasuredPipeline, rate: int, seconds: float, seed: int, warm_up: float
) -> dict[str, Any]:
    """Measure the latencies in seconds, at `rate` events per second for `seconds`, after `warm_up` seconds."""
    environment.say("starting processor and sink")
    replicas = environment.settings.replicas_of(found()[workload.name])
    for number in map(str, range(replicas)):
        environment.start(f"processor-{number}", "process", workload.name, "--processes", "1", "--instance", number)
    environment.start("sink", "sink", workload.name)
    reader = _OutputReader(environment, workload)
    reader.start()
    environment.say(f"producing {rate:,} events a second: {warm_up:.0f} s of warm-up, then {seconds:.0f} s that count")
    drained = partial(environment.drained, workload.name)
    try:
        produced, counted_from = _produce(environment, workload, rate, seconds, seed, reader, warm_up)
        environment.wait(drained, _ARRIVE_S, "every event is in the tables", _LAG_ASK_EVERY_S)
        environment.wait(reader.done, _ARRIVE_S, "every output was seen")
    finally:
        reader.stop()
    arrivals = reader.arrivals()
    ways = [(at, arrivals[source] - at) for source, at in produced.items() if source in arrivals]
    latencies = sorted(way for at, way in ways if at >= counted_from)
    if not latencies:
        raise RuntimeError(f"no event of {workload.name} has an output that the sink has written; give more --seconds")
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {
        "pipeline": workload.name,
        **({"replicas": replicas} if replicas > 1 else {}),
        "events": len(latencies),
        "events_per_second": rate,
        "warm_up_s": round(counted_from - ways[0][0]),
        **{f"{name}_s": round(percentile(latencies, share), 3) for name, share in shares.items()},
        "max_s": round(latencies[-1], 3),
        f"p50_of_every_{_COURSE_S}_s_from_the_start": course(ways, _COURSE_S),
    }


def course(ways: list[tuple[float, float]], step: float) -> list[float]:
    """Median latency of each `step` seconds, from (unix time of produce, latency) in order of time."""
    began = ways[0][0]
    steps = groupby(ways, key=lambda way: int((way[0] - began) // step))
    return [round(percentile(sorted(latency for _, latency in group), 0.5), 3) for _, group in steps]


def _produce(
    environment: BenchmarkEnvironment,
    workload: MeasuredPipeline,
    rate: int,
    seconds: float,
    seed: int,
    reader: "_OutputReader",
    warm_up: float,
) -> tuple[dict[Source, float], float]:
    """Produce at a steady rate. Return the unix time of each event's produce call, in order, and the time when counting began."""
    settings = {"enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 2}
    producer = kafka_client.producer({**environment.client, **settings})
    produced: dict[Source, float] = {}

    def delivered(at: float, error: Any, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"Kafka did not take an event: {error.str()}")
        produced[_source(message)] = at

    counted_from = 0.0
    inputs = workload.generate(seed, int(rate * (warm_up + _CATCH_UP_S + seconds)))
    for number, given in enumerate(paced(producer, inputs, rate)):
        since = number / rate - warm_up
        if (
            not counted_from
            and number % rate == 0
            and (since >= _CATCH_UP_S or (since >= 0 and _warm(reader, produced)))
        ):
            counted_from = time.time()
        elif counted_from and time.time() > counted_from + seconds:
            break
        producer.produce(given.topic, given.value, given.key, on_delivery=partial(delivered, time.time()))
    producer.flush(30)
    return dict(sorted(produced.items(), key=lambda event: event[1])), counted_from


def _warm(reader: "_OutputReader", produced: Mapping[Source, float]) -> bool:
    """Whether the last arrived event was produced less than a second ago."""
    return time.time() - produced.get(reader.last_arrived, 0.0) < 1.0


def _source(message: Message) -> Source:
    return Source(message.topic() or "", message.partition() or 0, message.offset() or 0)


class _OutputReader:
    """Reader of outputs and of the ledger in a thread, with a separate connection.

    Attributes:
        last_arrived: input record whose output was written last.
    """

    def __init__(self, environment: BenchmarkEnvironment, workload: MeasuredPipeline) -> None:
        self.last_arrived = Source("", 0, 0)
        self._dsn = environment.dsn
        self._client = environment.client
        self._workload = workload
        self._topics = (*workload.inputs, *workload.landed)
        self._kafka = kafka_client.admin({**self._client})
        # Per partition in the ledger: (offset, unix time) of each change.
        self._landed: dict[Place, list[tuple[int, float]]] = defaultdict(list)
        # Per input record: unix time of the last output so far. Per repartitioned record: its original.
        self._arrived: dict[Source, float] = {}
        self._originals: dict[Source, Source] = {}
        # Per output partition: records not yet written, in order.
        self._pending: dict[Place, deque[tuple[int, Source]]] = defaultdict(deque)
        self._read_to: dict[Place, int] = {}
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()

    def done(self) -> bool:
        """Whether every output so far was read and is in the ledger. Raises RuntimeError with the error that ended the thread."""
        if self._failure is not None:
            raise RuntimeError(f"the reader failed: {self._failure}")
        ends = offsets.stable_ends(self._kafka, self._topics)
        read = all(self._read_to.get(place, 0) >= end for place, end in ends.items())
        return read and not any(self._pending.values())

    def arrivals(self) -> Mapping[Source, float]:
        """Arrived input records, with the unix time at which all outputs of each were visible."""
        return {self._originals.get(source, source): at for source, at in self._arrived.items()}

    def _run(self) -> None:
        try:
            with postgres.connect(self._dsn, "onefold bench") as connection:
                self._follow(connection)
        except BaseException as error:  # noqa: BLE001 - a thread's error is raised again in the main thread
            self._failure = error

    def _follow(self, connection: psycopg.Connection[Any]) -> None:
        settings = {"enable.partition.eof": True, "fetch.wait.max.ms": 100}
        with closing(kafka_client.consumer({**self._client, **settings})) as consumer:
            topics = consumer.list_topics(timeout=10).topics
            places = [(topic, partition) for topic in self._topics for partition in topics[topic].partitions]
            consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
            while not self._stop.wait(_ASK_EVERY_S):
                self._look(offsets.landed_over(connection, self._workload.name))
                for message in consumer.consume(_READ_MAX, 0):
                    self._take(message)
                self._settle()

    def _look(self, landed: Mapping[Place, int]) -> None:
        now = time.time()
        for place, offset in landed.items():
            moves = self._landed[place]
            if not moves or offset > moves[-1][0]:
                moves.append((offset, now))

    def _landed_at(self, place: Place, offset: int) -> float | None:
        """Unix time at which the ledger first passed the offset; None: not yet."""
        moves = self._landed[place]
        at = bisect_right(moves, offset, key=lambda move: move[0])
        return moves[at][1] if at < len(moves) else None

    def _take(self, message: Message) -> None:
        place, error = (message.topic() or "", message.partition() or 0), message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._read_to[place] = message.offset() or 0
            return
        itself = _source(message)
        self._read_to[place] = itself.offset + 1
        headers: list[tuple[str, Any]] = list(message.headers() or ())  # type: ignore[arg-type]  # never a dict here
        source = source_of(dict(headers).get(SOURCE_HEADER))
        if source and itself.topic in self._workload.landed:
            self._pending[place].append((itself.offset, source))
        elif source:
            self._originals[itself] = source

    def _settle(self) -> None:
        """Settle arrived outputs. The time is the ledger's first passing of the offset, however late the record is read here."""
        for place, pending in self._pending.items():
            while pending and (at := self._landed_at(place, pending[0][0])) is not None:
                _, source = pending.popleft()
                self._arrived[source] = max(at, self._arrived.get(source, 0.0))
                self.last_arrived = source
