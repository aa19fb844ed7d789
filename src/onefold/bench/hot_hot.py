"""Longest gap without accepted records when one of two processes is killed: active-active and partitioned, in one run.

A producer sends at a steady rate. Processes are killed with SIGKILL in turn and started again, or paused with SIGSTOP and
resumed. For every input partition a reader follows the accepted records. Active-active: the decision log, by the rule of
`decide`. Partitioned: the progress in the changelog, read as committed.

- Gap: the longest time between two accepted records of a partition.
- Latency: the time from an event's timestamp to the reading of the accepted record with that event.
- Gap in rows, with a sink: the longest time between two batches with rows of a partition.

Each mode begins with an interval without kills, so that both figures include the machine's own delays.
"""

import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from onefold import kafka_client
from onefold.bench.cpu import percentile
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.follower import Follower
from onefold.bench.rows import RowWatcher, gaps
from onefold.bench.workload import MeasuredPipeline
from onefold.operate import offsets
from onefold.operate.pacing import Sender
from onefold.operate.pipelines import found
from onefold.pipelines import PROJECT_FILE, PROJECT_VARIABLE
from onefold.processor.loading import topology_of
from onefold.stack.child import Child
from onefold.verify.verdict import VALID

# Until every process has tasks and has processed records.
WARM_UP_S = 5.0
# Spark compiles code while running (decision 10).
WARM_UP_ROWS_S = 30.0
# Delay before a killed process is started again. For the rest of the interval, both processes run.
_DOWN_S = 1.0
# Duration of a pause: longer than the detection of a missing publisher, and than several batches of the sink.
_FROZEN_S = 3.0
# First batch of Spark, in a JVM without compiled code.
_ROWS_S = 120.0
_DRAIN_S = 60.0
# Time limit of `verify`, with the sink alone on the cores.
_JUDGED_S = 300
# Shorter than in other benchmarks, because the sender's step adds to the latency.
_STEP_S = 0.002
# Inputs made before the first is sent; an input has some 400 bytes.
_AHEAD_MAX = 3_000_000
_MARGIN = 3  # the sender continues while processes start


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Disable the cycle collector, because a collection pauses the readers and would look like a gap."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class KillPlan:
    """Faults of a run.

    Attributes:
        rate: events per second.
        seconds: between two faults.
        kills: number of faults in each mode.
        stop: True: pause and resume a process; False: kill and start again.
        rows: run a sink, and measure the gaps of rows too.
        warm_up: seconds before the measurement.
        untouched: seconds without faults. None: as long as with faults, because longest gaps compare only over equal times.
    """

    rate: int
    seconds: float
    kills: int
    stop: bool = False
    rows: bool = False
    warm_up: float = WARM_UP_S
    untouched: float | None = None

    @property
    def events(self) -> int:
        """Number of events, more than the run can send."""
        first = self.warm_up + self.untouched_s + (_ROWS_S if self.rows else 0)
        return round(_MARGIN * self.rate * (first + self.kills * self.one_s))

    @property
    def one_s(self) -> float:
        """Seconds from one fault to the next."""
        return (_FROZEN_S if self.stop else _DOWN_S) + self.seconds

    @property
    def untouched_s(self) -> float:
        """Seconds of the interval without faults."""
        return max(1, self.kills) * self.one_s if self.untouched is None else self.untouched

    @property
    def what(self) -> str:
        """Kind of fault: stop or kill."""
        return "stop" if self.stop else "kill"


@_no_search_for_cycles()
def measure(
    environment: BenchmarkEnvironment, workload: MeasuredPipeline, partitions: int, plan: KillPlan, seed: int
) -> dict[str, Any]:
    """Measure active-active replicas first, then the same pipeline partitioned, on the same servers. Verify both at the end.

    Raises:
        RuntimeError: not all events were processed in time, or the verification failed.
    """
    topology = topology_of(workload.name)
    figures: dict[str, Any] = {
        "pipeline": workload.name,
        "events_per_second": plan.rate,
        f"{plan.what}s": plan.kills,
    }
    _declare(environment, workload.name)
    for mode, replicas, topic in (("hot_hot", 2, topology.decisions), ("elastic", 1, topology.changelog)):
        environment.environment["ONEFOLD_REPLICAS"] = str(replicas)
        environment.say(f"{mode}: starting two processes")
        children = [environment.start(*_process(workload.name, number)) for number in (0, 1)]
        sink = start_sink(environment, workload.name, mode) if plan.rows else None
        ends = offsets.stable_ends(kafka_client.admin({**environment.client}), workload.inputs)
        follower = Follower(environment.client, topic, ends, partitions)
        rows = RowWatcher(environment.dsn, workload.name, partitions) if sink else None
        figures |= _of_mode(environment, workload, plan, mode, children, follower, rows, seed)
        if sink is None and mode == "elastic":  # the rows of both modes are written and verified here
            sink = start_sink(environment, workload.name, mode)
        if sink is not None:
            figures |= _judged(environment, workload.name, mode)
            sink.stop()
        seed += 1
    return figures


def start_sink(environment: BenchmarkEnvironment, name: str, mode: str) -> Child:
    """Start the sink, and wait until the sink runs."""
    environment.say(f"{mode}: starting the sink")
    return environment.start("sink", "sink", name)


def _judged(environment: BenchmarkEnvironment, name: str, mode: str) -> dict[str, str]:
    """Run `verify` until the sink has written everything. Raises RuntimeError unless the outcome is *valid*."""
    environment.say(f"{mode}: verifying")
    environment.run("verify", name, "--timeout", str(_JUDGED_S))
    return {f"{mode}_verify": VALID}


def _declare(environment: BenchmarkEnvironment, name: str) -> None:
    """Declare the pipeline with unlimited retention of the decision log, because the follower reads all of the log."""
    pipeline = found()[name]
    texts = {
        "topology": pipeline.topology,
        "workload": pipeline.workload,
        "contracts": str(pipeline.contracts),
        "sql": str(pipeline.sql),
    }
    lines = [f"{key} = {json.dumps(text)}" for key, text in texts.items() if text is not None]
    lines.append(f"kafka_only = {json.dumps(pipeline.kafka_only)}")
    lines.append("decisions_kept_s = -1")
    table = "\n".join(["[tool.onefold]", "packages = []", f"[tool.onefold.pipelines.{name}]", *lines, ""])
    (environment.home / PROJECT_FILE).write_text(table, encoding="utf-8")
    environment.environment[PROJECT_VARIABLE] = str(environment.home)
    if pipeline.imported_from is not None:
        paths = (str(pipeline.imported_from), os.environ.get("PYTHONPATH", ""))
        environment.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _of_mode(
    environment: BenchmarkEnvironment,
    workload: MeasuredPipeline,
    plan: KillPlan,
    mode: str,
    children: list[Child],
    follower: Follower,
    rows: RowWatcher | None,
    seed: int,
) -> dict[str, Any]:
    inputs = workload.generate(seed, plan.events)
    ahead = [*islice(inputs, min(plan.events // _MARGIN, _AHEAD_MAX))]
    # A producer without tuning: a record waits up to 5 ms for a batch.
    producer = kafka_client.producer({**environment.client, "partitioner": "murmur2_random"})
    follower.start()
    with Sender(producer, chain(ahead, inputs), plan.rate, _STEP_S):
        if rows is not None:
            rows.start()
            environment.wait(rows.all_land, _ROWS_S, "the sink writes rows of each partition")
        time.sleep(plan.warm_up)
        environment.say(f"{mode}: {plan.untouched_s:.0f} s without a {plan.what}")
        began, decided = time.time(), _decided(follower)
        time.sleep(plan.untouched_s)
        calm_until = time.time()
        starts = []
        for number in range(plan.kills):
            environment.say(f"{mode}: {plan.what} {number + 1} of {plan.kills}")
            at = number % 2
            if plan.stop:
                _freeze(children[at])
            else:
                os.kill(children[at].pid or 0, signal.SIGKILL)
                time.sleep(_DOWN_S)
                starts_at = time.monotonic()
                children[at] = environment.start(*_process(workload.name, at))
                starts.append(time.monotonic() - starts_at)
            time.sleep(plan.seconds)
        ended, decided = time.time(), _decided(follower) - decided
    environment.say(f"{mode}: draining")
    ends = offsets.stable_ends(kafka_client.admin({**environment.client}), workload.inputs)
    _wait_until_true(environment, follower, ends)
    follower.stop()
    if rows is not None:
        rows.stop()
    for child in children:
        child.stop()
    times = began, calm_until, ended
    figures: dict[str, Any] = {f"{mode}_events_decided_per_second": round(decided / (ended - began))}
    if starts:
        figures[f"{mode}_longest_start_ms"] = round(1000 * max(starts))
    figures |= _figures(mode, plan.what, follower, *times)
    return figures | (_of_rows(mode, plan.what, rows, *times) if rows else {})


def _decided(follower: Follower) -> int:
    """Number of accepted input offsets over all partitions. The producer uses no transactions, so each offset is an event."""
    return sum(follower.reached.copy().values())


def _freeze(child: Child) -> None:
    os.kill(child.pid or 0, signal.SIGSTOP)
    try:
        time.sleep(_FROZEN_S)
    finally:
        os.kill(child.pid or 0, signal.SIGCONT)


def _of_rows(mode: str, what: str, rows: RowWatcher, began: float, calm_until: float, ended: float) -> dict[str, Any]:
    calm, killed = gaps(rows.moments, began, calm_until), gaps(rows.moments, calm_until, ended)
    return {
        f"{mode}_longest_gap_in_rows_without_{what}s_ms": round(1000 * calm[0]),
        f"{mode}_longest_gaps_in_rows_with_{what}s_ms": [round(1000 * gap) for gap in killed[:5]],
    }


def _process(pipeline: str, number: int) -> tuple[str, ...]:
    """Name and command of one process."""
    return f"processor-{number}", "process", pipeline, "--processes", "1", "--instance", str(number)


def _wait_until_true(environment: BenchmarkEnvironment, follower: Follower, ends: dict[tuple[str, int], int]) -> None:
    def reached() -> bool:
        return all(follower.reached[place] >= end for place, end in ends.items())

    environment.wait(reached, _DRAIN_S, "all events are processed")


def _figures(mode: str, what: str, follower: Follower, began: float, calm_until: float, ended: float) -> dict[str, Any]:
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
