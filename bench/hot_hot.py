"""How long nothing is decided when one of two processes is killed: with replicas, and elastic, in the same run.

A producer sends at a steady rate. Processes are killed one after the other with kill -9, and started again; or stopped with
SIGSTOP, and woken. For every input partition a reader follows what is true: the decided history in the decision log, by the
rule; elastic, the progress in the changelog, as readers of committed records see it. The longest time between two of these
moments is the gap; the time from an event's own timestamp to the moment at which it is part of what is true is the latency.
The same gap of rows in Postgres, where a sink runs too, is that between two batches with rows of a partition.

Each mode has a time without kills first, so that what the machine itself does is in both figures.
"""

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold.bench.cpu import percentile
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.rows import ROWS_FROM, Rows, gaps
from onefold.bench.workload import Workload
from onefold.operate import positions
from onefold.operate.pipelines import found
from onefold.pipelines import PROJECT_FILE, PROJECT_VARIABLE
from onefold.processor.core.decision import Kind, Position, Proposal, decide
from onefold.processor.io.proposals import AvroProposals
from onefold.processor.loading import topology_of
from onefold.stack.child import Child

# Paced in steps: closer to life than one burst a second, and cheaper than a sleep an event.
_STEP_S = 0.002
# Until every process has its tasks, and has folded something.
WARM_UP_S = 5.0
# Spark's code is compiled while it runs (decision 10).
WARM_UP_ROWS_S = 30.0
# A killed process is started again after this time; the rest of the time between two kills both are there.
_DOWN_S = 1.0
# A stopped one is woken after this time: longer than it takes to see that nobody publishes, and than a few batches of the sink.
_FROZEN_S = 3.0
# Spark's first batch, in a JVM that has compiled nothing.
_ROWS_S = 120.0
_DRAIN_S = 60.0
_MARGIN = 3  # starting processes takes time as well, and the sender goes on meanwhile

# What is true counts from the moment at which it is read. Of the inputs only their own timestamps matter, and a request less is
# one that the broker does not answer on the cores that are measured.
_AT_ONCE = {"fetch.wait.max.ms": 20, "fetch.min.bytes": 1}
_SELDOM = {"fetch.wait.max.ms": 200, "fetch.min.bytes": 1_000_000}

#: Partition, and per input topic the offset to read next.
Moment = tuple[int, dict[str, int]]


class _Follower:
    """Follows what is true in a thread of its own."""

    def __init__(
        self, client: dict[str, str], topic: str, starts: dict[tuple[str, int], int], partitions: int, logs: int
    ) -> None:
        self._client = client
        self._topic = topic
        self._starts = starts
        self._done = threading.Event()
        self._positions: dict[int, Position | None] = {}
        self._proposals = AvroProposals()
        self._logs = logs
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

    def latencies(self, since: float, until: float) -> list[float]:
        """In order, of the events that became true between these moments. Both readers have to have ended."""
        return sorted(
            now - self._made[topic, partition][offset]
            for topic, partition, start, end, now in self._true
            if since < now < until
            for offset in range(start, end)
            if offset in self._made.get((topic, partition), {})
        )

    def _consumer(self, starts: dict[tuple[str, int], int], fetches: dict[str, int]) -> Consumer:
        settings = {"group.id": "onefold-bench", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({**self._client, **settings, **fetches, "log_level": 0})
        consumer.assign([TopicPartition(topic, partition, at) for (topic, partition), at in starts.items()])
        return consumer

    def _read_inputs(self) -> None:
        with closing(self._consumer(self._starts, _SELDOM)) as consumer:
            while not self._done.is_set():
                for message in consumer.consume(1_000, 0.05):
                    if message.error() is None:
                        made = self._made.setdefault((message.topic() or "", message.partition() or 0), {})
                        made[message.offset() or 0] = message.timestamp()[1] / 1000

    def _follow(self) -> None:
        whole = {(self._topic, partition): 0 for partition in range(self._logs)}
        with closing(self._consumer(whole, _AT_ONCE)) as consumer:
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
    """Sends at a steady rate until it is stopped, as a producer that nobody has tuned: a record waits up to 5 ms for others."""

    def __init__(self, client: dict[str, str], inputs: Iterator[Any], rate: int) -> None:
        self._producer = Producer({**client, "partitioner": "murmur2_random", "log_level": 0})
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


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """One among all that the readers keep would stop them for a third of a second, and look like a gap."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class RowsFrom(StrEnum):
    """What fills the tables whose rows are watched."""

    TOPICS = "topics"
    LOG = "log"


@dataclass(frozen=True)
class Plan:
    """What is done to the processes.

    Attributes:
        rate: events a second.
        seconds: between two kills.
        kills: how many there are, in each mode.
        stop: a process is stopped for a while and woken, instead of killed and started again.
        rows: a sink fills tables from there, and the gaps of rows are measured too; None: no sink.
        warm_up: seconds before anything counts.
        untouched: seconds without kills. None: as long as with them, as longest gaps of unequal times do not compare.
    """

    rate: int
    seconds: float
    kills: int
    stop: bool = False
    rows: RowsFrom | None = None
    warm_up: float = WARM_UP_S
    untouched: float | None = None

    @property
    def events(self) -> int:
        """More than are sent in all of this time."""
        first = self.warm_up + self.untouched_s + (_ROWS_S if self.rows else 0)
        return round(_MARGIN * self.rate * (first + self.kills * self.one_s))

    @property
    def one_s(self) -> float:
        """From one kill to the next."""
        return (_FROZEN_S if self.stop else _DOWN_S) + self.seconds

    @property
    def untouched_s(self) -> float:
        """How long nothing is done to a process at first."""
        return max(1, self.kills) * self.one_s if self.untouched is None else self.untouched

    @property
    def what(self) -> str:
        """What is done to a process."""
        return "stop" if self.stop else "kill"


@_no_search_for_cycles()
def measure(
    environment: BenchmarkEnvironment, workload: Workload, partitions: int, plan: Plan, seed: int
) -> dict[str, Any]:
    """Replicas first, then the same pipeline elastic, on the same topics; rows of a decision log with replicas alone.

    Raises:
        RuntimeError: what was sent is not all folded in the end.
    """
    _declare(environment, workload.name, plan.rows is RowsFrom.LOG)
    topology = topology_of(workload.name)
    decision_logs = None if plan.rows is RowsFrom.LOG else found()[workload.name].decision_logs
    figures: dict[str, Any] = {
        "pipeline": workload.name,
        "events_per_second": plan.rate,
        f"{plan.what}s": plan.kills,
        **({"rows_from": ROWS_FROM[plan.rows]} if plan.rows else {}),
    }
    sink: Child | None = None
    for mode, replicas, topic in (("hot_hot", 2, topology.decisions), ("elastic", 1, topology.changelog)):
        environment.environment["ONEFOLD_REPLICAS"] = str(replicas)
        if mode == "elastic" and plan.rows is RowsFrom.LOG and sink is not None:
            sink.stop()
            sink = None
        environment.say(f"{mode}: starting two processes")
        children = [_start(environment, workload.name, number) for number in (0, 1)]
        if mode == "hot_hot" and plan.rows is not None:
            environment.say("starting the sink")
            sink = environment.start("sink", "sink", workload.name)
        logs = min(decision_logs or partitions, partitions) if mode == "hot_hot" else partitions
        ends = positions.stable_ends(AdminClient({**environment.client}), workload.inputs)
        follower = _Follower(environment.client, topic, ends, partitions, logs)
        rows = Rows(environment.dsn, workload.name, partitions) if sink is not None else None
        figures |= _of_mode(environment, workload, plan, mode, children, follower, rows, seed)
        seed += 1
    return figures


def _declare(environment: BenchmarkEnvironment, name: str, decided_tables: bool) -> None:
    """The pipeline as it is declared, but for where its tables are filled from."""
    pipeline = found()[name]
    texts = {
        "topology": pipeline.topology,
        "workload": pipeline.workload,
        "contracts": str(pipeline.contracts),
        "sql": str(pipeline.sql),
    }
    lines = [f"{key} = {json.dumps(text)}" for key, text in texts.items() if text is not None]
    lines.append(f"kafka_only = {json.dumps(pipeline.kafka_only)}")
    if decided_tables:
        lines += ["replicas = 2", "decided_tables = true"]
    elif pipeline.decision_logs is not None:
        lines.append(f"decision_logs = {pipeline.decision_logs}")
    # The whole log is read by whoever follows it.
    if not decided_tables:
        lines.append("decisions_kept_s = -1")
    table = "\n".join(["[tool.onefold]", "packages = []", f"[tool.onefold.pipelines.{name}]", *lines, ""])
    (environment.home / PROJECT_FILE).write_text(table)
    environment.environment[PROJECT_VARIABLE] = str(environment.home)
    if pipeline.imported_from is not None:
        paths = (str(pipeline.imported_from), os.environ.get("PYTHONPATH", ""))
        environment.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _of_mode(
    environment: BenchmarkEnvironment,
    workload: Workload,
    plan: Plan,
    mode: str,
    children: list[Child],
    follower: _Follower,
    rows: Rows | None,
    seed: int,
) -> dict[str, Any]:
    sender = _Sender(environment.client, workload.generate(seed, plan.events), plan.rate)
    follower.start()
    sender.start()
    if rows is not None:
        rows.start()
        environment.wait(rows.all_land, _ROWS_S, "rows of each partition land")
    time.sleep(plan.warm_up)
    environment.say(f"{mode}: {plan.untouched_s:.0f} s without a {plan.what}")
    began = time.time()
    time.sleep(plan.untouched_s)
    calm_until = time.time()
    for number in range(plan.kills):
        environment.say(f"{mode}: {plan.what} {number + 1} of {plan.kills}")
        at = number % 2
        if plan.stop:
            _freeze(children[at])
        else:
            os.kill(children[at].pid or 0, signal.SIGKILL)
            time.sleep(_DOWN_S)
            children[at] = _start(environment, workload.name, at)
        time.sleep(plan.seconds)
    ended = time.time()
    sender.stop()
    environment.say(f"{mode}: draining")
    ends = positions.stable_ends(AdminClient({**environment.client}), workload.inputs)
    _wait_until_true(environment, follower, ends)
    follower.stop()
    if rows is not None:
        rows.stop()
    for child in children:
        child.stop()
    times = began, calm_until, ended
    return _figures(mode, plan.what, follower, *times) | (_of_rows(mode, plan.what, rows, *times) if rows else {})


def _freeze(child: Child) -> None:
    os.kill(child.pid or 0, signal.SIGSTOP)
    try:
        time.sleep(_FROZEN_S)
    finally:
        os.kill(child.pid or 0, signal.SIGCONT)


def _of_rows(mode: str, what: str, rows: Rows, began: float, calm_until: float, ended: float) -> dict[str, Any]:
    calm, killed = gaps(rows.moments, began, calm_until), gaps(rows.moments, calm_until, ended)
    return {
        f"{mode}_longest_gap_in_rows_without_{what}s_ms": round(1000 * calm[0]),
        f"{mode}_longest_gaps_in_rows_with_{what}s_ms": [round(1000 * gap) for gap in killed[:5]],
    }


def _start(environment: BenchmarkEnvironment, pipeline: str, number: int) -> Child:
    return environment.start(f"processor-{number}", "process", pipeline, "--processes", "1", "--instance", str(number))


def _wait_until_true(environment: BenchmarkEnvironment, follower: _Follower, ends: dict[tuple[str, int], int]) -> None:
    def reached() -> bool:
        return all(follower.reached[place] >= end for place, end in ends.items())

    environment.wait(reached, _DRAIN_S, "every event is folded")


def _figures(
    mode: str, what: str, follower: _Follower, began: float, calm_until: float, ended: float
) -> dict[str, Any]:
    calm, killed = gaps(follower.moments, began, calm_until), gaps(follower.moments, calm_until, ended)
    latencies = follower.latencies(began, calm_until)
    if not latencies:
        raise RuntimeError(f"{mode}: nothing was decided in the {calm_until - began:.0f} s before the first {what}")
    decided = sum(began < at < ended for moments in follower.moments.values() for at in moments)
    figures: dict[str, Any] = {
        f"{mode}_longest_gap_without_{what}s_ms": round(1000 * calm[0]),
        f"{mode}_longest_gaps_with_{what}s_ms": [round(1000 * gap) for gap in killed[:5]],
        f"{mode}_p50_ms": round(1000 * percentile(latencies, 0.5), 1),
        f"{mode}_p99_ms": round(1000 * percentile(latencies, 0.99), 1),
        f"{mode}_transactions_per_second": round(decided / (ended - began)),
    }
    if follower.winners:
        figures[f"{mode}_decisions_won"] = ", ".join(f"{name} {won}" for name, won in sorted(follower.winners.items()))
    return figures
