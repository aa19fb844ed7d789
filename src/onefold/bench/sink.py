"""Output records per second of the sink, each batch with its offsets in one PostgreSQL transaction.

A processor first fills the output topics from generated input; then the sink starts on empty tables. The first batch is the
warm-up, in which the JVM loads and compiles code, so extra events are generated for it. There are two rates: from the first
commit to the last, which is the rate of a warm sink; and from the start of the queries, with the cold first batch.

The times of the stages of a batch come from the sink's own metrics. The sink reads one batch while writing another, so
these times may add up to more than the elapsed time.
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
from onefold.bench.workload import MeasuredPipeline
from onefold.spark_sink.query_config import MAX_OFFSETS_PER_BATCH
from onefold.stack.ports import free_ports
from onefold.telemetry import STAGE_S
from onefold.workloads.shaping import Input

_DRAIN_S = 600.0
# Resolution of a commit's time, small against the duration of a batch.
_ASK_EVERY_S = 0.02
_ANSWER_S = 5.0
# In the Prometheus text format, of one pipeline.
_STAGE = re.compile(rf'^{STAGE_S}{{.*stage="(\w+)".*}} (\S+)$', re.MULTILINE)

# The number of output records per event depends on the pipeline; this many events give a first estimate.
_SAMPLE_EVENTS = 20_000
# A pipeline whose outputs do not fill the first batch with this many events is not measured.
_WARM_UP_EVENTS_MAX = 20 * MAX_OFFSETS_PER_BATCH


def measure(environment: BenchmarkEnvironment, workload: MeasuredPipeline, events: int, seed: int) -> dict[str, Any]:
    """Measure the writing of the outputs of `events` events, after a warm-up."""
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
    if len(commits) < 3:  # the start, the first batch, and nothing else
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


def _fill_first_batch(environment: BenchmarkEnvironment, workload: MeasuredPipeline, inputs: Iterator[Input]) -> None:
    """Process events until their outputs fill the first batch."""
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
