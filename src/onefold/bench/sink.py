"""How many output records a second the sink lands, each batch with its offsets in one Postgres transaction.

The output topics are filled first, by the processor from generated input; then the sink starts on empty tables. Its
first batch is its warm-up: the JVM loads and compiles what it needs in it. So there are events for it beyond those that
were asked for. Two figures: from the first commit to the last one, which is how a sink lands that runs; and from the
moment its queries run, the cold first batch included. And what the stages of a batch took, by the sink's own metrics: one
batch is read while another is landed, so that these may add up to more than the time that passed.
"""

import re
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.request import urlopen

from onefold.bench.cpu import CpuSampler
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.processor import fold
from onefold.bench.workload import Workload
from onefold.spark_sink.plan import MAX_OFFSETS_PER_BATCH
from onefold.stack.ports import free_ports
from onefold.telemetry import STAGE_S
from onefold.workloads.shaping import Input

_DRAIN_S = 600.0
# A batch takes a second or so; the moment of its commit is known this well.
_ASK_EVERY_S = 0.02
_ANSWER_S = 5.0
# As Prometheus reads it; of one pipeline.
_STAGE = re.compile(rf'^{STAGE_S}{{.*stage="(\w+)".*}} (\S+)$', re.MULTILINE)

# How many output records an event has, only its pipeline knows: after so many events there is a first answer.
_SAMPLE_EVENTS = 20_000
# What does not fill the first batch with so many events is not worth waiting for.
_WARM_UP_EVENTS_MAX = 20 * MAX_OFFSETS_PER_BATCH


def measure(environment: BenchmarkEnvironment, workload: Workload, events: int, seed: int) -> dict[str, Any]:
    """The figures of landing the outputs of `events` events, after those of a warm-up."""
    inputs = iter(workload.generate(seed, _WARM_UP_EVENTS_MAX + events))
    _fill_first_batch(environment, workload, inputs)
    fold(environment, workload, islice(inputs, events), 1)
    total = environment.to_land(workload.landed)
    environment.say(f"writing {total:,} output offsets to PostgreSQL")
    (port,) = free_ports(1)
    environment.environment["ONEFOLD_METRICS_PORT"] = str(port)
    sink = environment.start("sink", "sink", workload.name)
    began = time.time()
    cpu = CpuSampler({"sink": [sink.pid or 0], "postgres": [environment.infrastructure.postgres.pid or 0]})
    commits = [(began, 0)]
    stages: list[dict[str, float]] = []

    def landed() -> bool:
        now = environment.landed(workload.name)
        if now > commits[-1][1]:
            commits.append((time.time(), now))
            stages.append(_stages(port))
        return now >= total

    environment.wait(landed, _DRAIN_S, "all output records are written to PostgreSQL", _ASK_EVERY_S)
    cpu.stop()
    sink.stop()
    if len(commits) < 3:  # the beginning, the first batch, and nothing after it
        raise RuntimeError("the sink wrote all records in one batch, its first: give more --events")
    (first_at, first), (last_at, _) = commits[1], commits[-1]
    rows = total - first
    return {
        "pipeline": workload.name,
        "rows": rows,
        "commits_seen": len(commits) - 2,
        "seconds": round(last_at - first_at, 3),
        "rows_per_second": round(rows / (last_at - first_at)),
        "sink_cpu_us_per_row": round(cpu.seconds("sink", first_at, last_at) / rows * 1e6, 1),
        "postgres_cpu_us_per_row": round(cpu.seconds("postgres", first_at, last_at) / rows * 1e6, 1),
        **{f"{stage}_us_per_row": round((seconds - stages[0].get(stage, 0.0)) / rows * 1e6, 1)
           for stage, seconds in stages[-1].items()},
        "rows_with_the_cold_batch": total,
        "rows_per_second_with_the_cold_batch": round(total / (last_at - began)),
        "sink_cpu_us_per_row_with_the_cold_batch": round(cpu.seconds("sink", began, last_at) / total * 1e6, 1),
    }  # fmt: skip


def _stages(port: int) -> dict[str, float]:
    """Seconds that the sink has spent in each stage so far."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_ANSWER_S) as answer:
        told = re.findall(_STAGE, answer.read().decode())
    return {stage: float(seconds) for stage, seconds in told}


def _fill_first_batch(environment: BenchmarkEnvironment, workload: Workload, inputs: Iterator[Input]) -> None:
    """Fold events until their outputs are more than the first batch takes."""
    folded, step = 0, _SAMPLE_EVENTS
    while folded < _WARM_UP_EVENTS_MAX:
        fold(environment, workload, islice(inputs, step), 1)
        folded += step
        offsets = environment.to_land(workload.landed)
        if offsets >= MAX_OFFSETS_PER_BATCH:
            return
        step = max(_SAMPLE_EVENTS, (MAX_OFFSETS_PER_BATCH - offsets) * folded // max(1, offsets))
        step = min(step, _WARM_UP_EVENTS_MAX - folded)
    raise RuntimeError(f"{folded:,} events of {workload.name} have {offsets:,} output records in PostgreSQL")
