"""How long nothing is decided when one of two processes is killed: with replicas, and elastic, in the same run.

A producer sends at a steady rate. Processes are killed one after the other with kill -9, and started again. For every input
partition a reader follows what is true: the decided history in the decision log, by the rule; elastic, the progress in the
changelog, as readers of committed records see it. The longest time between two of these moments is the gap; the time from an
event's own timestamp to the moment at which it is part of what is true is the latency.

Each mode has a time without kills first, so that what the machine itself does is in both figures.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold.bench.cpu import percentile
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.workload import Workload
from onefold.operate import positions
from onefold.processor.core.decision import Kind, Position, Proposal, decide
from onefold.processor.io.proposals import AvroProposals
from onefold.processor.loading import topology_of
from onefold.stack.child import Child

# Paced in steps: closer to life than one burst a second, and cheaper than a sleep an event.
_STEP_S = 0.002
# Until every process has its tasks, and has folded something.
_WARM_UP_S = 5.0
# A killed process is started again after this time; the rest of the time between two kills both are there.
_DOWN_S = 1.0
_DRAIN_S = 60.0

#: Partition, and per input topic the offset to read next.
Moment = tuple[int, dict[str, int]]


class _Follower:
    """Follows what is true in a thread of its own."""

    def __init__(self, client: dict[str, str], topic: str, starts: dict[tuple[str, int], int], partitions: int) -> None:
        self._partitions = partitions
        self._client = client
        self._topic = topic
        self._starts = starts
        self._done = threading.Event()
        self._positions: dict[int, Position | None] = {}
        self._proposals = AvroProposals()
        self._hot = topic.endswith(".decisions")
        self.moments: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self.reached = dict(starts)
        self._true: list[tuple[str, int, int, int, float]] = []  # topic, partition, from, to, when
        self.winners: dict[str, int] = {}
        self._made: dict[tuple[str, int], dict[int, float]] = {}
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._read_inputs, self._follow)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(5.0)

    def gaps(self, since: float, until: float) -> list[float]:
        """The longest first, of all partitions, between these moments."""
        found: list[float] = []
        for moments in self.moments.values():
            inside = [since, *(at for at in moments if since < at < until), until]
            found += [after - before for before, after in pairwise(inside)]
        return sorted(found, reverse=True)

    def latencies(self, since: float, until: float) -> list[float]:
        """In order, of the events that became true between these moments. Both readers have to have ended."""
        return sorted(
            now - self._made[topic, partition][offset]
            for topic, partition, start, end, now in self._true
            if since < now < until
            for offset in range(start, end)
            if offset in self._made.get((topic, partition), {})
        )

    def _consumer(self, starts: dict[tuple[str, int], int]) -> Consumer:
        settings = {"group.id": "onefold-bench", "enable.auto.commit": False, "isolation.level": "read_committed"}
        quick = {"fetch.wait.max.ms": 20, "fetch.min.bytes": 1, "log_level": 0}
        consumer = Consumer({**self._client, **settings, **quick})
        consumer.assign([TopicPartition(topic, partition, at) for (topic, partition), at in starts.items()])
        return consumer

    def _read_inputs(self) -> None:
        with closing(self._consumer(self._starts)) as consumer:
            while not self._done.is_set():
                for message in consumer.consume(1_000, 0.05):
                    if message.error() is None:
                        made = self._made.setdefault((message.topic() or "", message.partition() or 0), {})
                        made[message.offset() or 0] = message.timestamp()[1] / 1000

    def _follow(self) -> None:
        whole = {(self._topic, partition): 0 for partition in range(self._partitions)}
        with closing(self._consumer(whole)) as consumer:
            while not self._done.is_set():
                for message in consumer.consume(1_000, 0.01):
                    if message.error() is not None:
                        continue
                    moment = self._decided(message.value()) if self._hot else _progress(message)
                    if moment is not None:
                        self._note(moment, time.time())

    def _decided(self, value: bytes | None) -> Moment | None:
        proposal = self._proposals.decode(value)
        if not isinstance(proposal, Proposal):
            return None
        position = decide(self._positions.get(proposal.task), proposal)
        if position is None:
            return None
        self._positions[proposal.task] = position
        if proposal.kind is not Kind.STEP:
            return None
        self.winners[proposal.proposer] = self.winners.get(proposal.proposer, 0) + 1
        return proposal.task, {topic: at.offset for topic, at in position.inputs.items()}

    def _note(self, moment: Moment, now: float) -> None:
        partition, offsets = moment
        self.moments[partition].append(now)
        for topic, offset in offsets.items():
            self._true.append((topic, partition, self.reached[topic, partition], offset, now))
            self.reached[topic, partition] = offset


def _progress(message: Any) -> Moment | None:
    if message.key() != b"p":
        return None
    inputs = json.loads(message.value())["inputs"]
    return message.partition(), {topic: at["next_offset"] for topic, at in inputs.items()}


class _Sender:
    """Sends at a steady rate until it is stopped."""

    def __init__(self, client: dict[str, str], inputs: Iterator[Any], rate: int) -> None:
        self._producer = Producer({**client, "partitioner": "murmur2_random", "linger.ms": 1, "log_level": 0})
        self._inputs = inputs
        self._rate = rate
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(5.0)
        self._producer.flush(30)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._done.wait(_STEP_S):
            due = int((time.monotonic() - began) * self._rate)
            while self.sent < due:
                given = next(self._inputs)
                self._producer.produce(given.topic, given.value, given.key)
                self.sent += 1
            self._producer.poll(0)


def measure(
    environment: BenchmarkEnvironment,
    workload: Workload,
    partitions: int,
    rate: int,
    seconds: float,
    kills: int,
    seed: int,
) -> dict[str, Any]:
    """Replicas first, then the same pipeline elastic, on the same topics.

    Args:
        rate: events a second.
        seconds: of the time without kills, and between two kills.
        kills: how many there are, in each mode.

    Raises:
        RuntimeError: what was sent is not all folded in the end.
    """
    topology = topology_of(workload.name)
    admin = AdminClient({**environment.client})
    figures: dict[str, Any] = {"pipeline": workload.name, "events_per_second": rate, "kills": kills}
    for mode, replicas, topic in (("hot_hot", 2, topology.decisions), ("elastic", 1, topology.changelog)):
        environment.environment["ONEFOLD_REPLICAS"] = str(replicas)
        environment.say(f"{mode}: starting two processes")
        children = [_start(environment, workload.name, number) for number in (0, 1)]
        ends = positions.stable_ends(admin, workload.inputs)
        follower = _Follower(environment.client, topic, ends, partitions)
        sender = _Sender(environment.client, workload.generate(seed, 1 << 30), rate)
        follower.start()
        sender.start()
        time.sleep(_WARM_UP_S)
        environment.say(f"{mode}: {seconds:.0f} s without a kill")
        began = time.time()
        time.sleep(seconds)
        calm_until = time.time()
        for number in range(kills):
            environment.say(f"{mode}: kill {number + 1} of {kills}")
            at = number % 2
            os.kill(children[at].pid or 0, signal.SIGKILL)
            time.sleep(_DOWN_S)
            children[at] = _start(environment, workload.name, at)
            time.sleep(seconds)
        ended = time.time()
        sender.stop()
        environment.say(f"{mode}: draining")
        ends = positions.stable_ends(admin, workload.inputs)
        _wait_until_true(environment, follower, ends)
        follower.stop()
        for child in children:
            child.stop()
        figures |= _figures(mode, follower, began, calm_until, ended)
        seed += 1
    return figures


def _start(environment: BenchmarkEnvironment, pipeline: str, number: int) -> Child:
    return environment.start(f"processor-{number}", "process", pipeline, "--instance", str(number))


def _wait_until_true(environment: BenchmarkEnvironment, follower: _Follower, ends: dict[tuple[str, int], int]) -> None:
    def reached() -> bool:
        return all(follower.reached[place] >= end for place, end in ends.items())

    environment.wait(reached, _DRAIN_S, "every event is folded")


def _figures(mode: str, follower: _Follower, began: float, calm_until: float, ended: float) -> dict[str, Any]:
    calm, killed = follower.gaps(began, calm_until), follower.gaps(calm_until, ended)
    latencies = follower.latencies(began, calm_until)
    figures: dict[str, Any] = {
        f"{mode}_longest_gap_without_kills_ms": round(1000 * calm[0]),
        f"{mode}_longest_gaps_with_kills_ms": [round(1000 * gap) for gap in killed[:5]],
        f"{mode}_p50_ms": round(1000 * percentile(latencies, 0.5), 1),
        f"{mode}_p99_ms": round(1000 * percentile(latencies, 0.99), 1),
        f"{mode}_transactions_per_second": round(sum(map(len, follower.moments.values())) / (ended - began)),
    }
    if follower.winners:
        figures[f"{mode}_decisions_won"] = ", ".join(f"{name} {won}" for name, won in sorted(follower.winners.items()))
    return figures
