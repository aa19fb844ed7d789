"""Events per second of the processor, with transactions.

The input topic is filled first (JSON, with duplicates and late events), then the processors start. The clock is the
progress records in the changelog, one per transaction, so that the benchmark's own requests do not affect the figure.

With one processor, the measurement runs from the first committed transaction to the last, without the events of the first.
With several, the first processor works alone until the group revokes all tasks and assigns them again. The clock starts
there: no processor holds events then, so every later commit is later work, and the restore of every task is included. With
metrics, every processor serves a metrics port. The benchmark reads each port as often as the lag, which is more often than
a Prometheus server would.
"""

import json
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, ConsumerGroupState
from confluent_kafka.admin import AdminClient

from onefold import kafka_client
from onefold.bench.cpu import CpuSampler
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.workload import MeasuredPipeline
from onefold.operate import offsets
from onefold.processor.io.range_reader import between
from onefold.stack.ports import free_ports
from onefold.workloads.shaping import Input

_DRAIN_S = 600.0
# A rebalance begins with a heartbeat of the first processor, and waits for open transactions.
_SHARE_S = 60.0
# A running broker answers in milliseconds.
_ANSWER_S = 10.0
# A request for the lag costs the broker a little; the figure does not depend on its times.
_ASK_EVERY_S = 0.5

#: (unix time, partition, events processed so far in that partition), one per transaction
Commit = tuple[float, int, int]


def fold(
    environment: BenchmarkEnvironment,
    workload: MeasuredPipeline,
    inputs: Iterator[Input],
    instances: int,
    metrics: bool = False,
) -> tuple[CpuSampler, float]:
    """Fill the input topics of a pipeline, and process all events. The processors have stopped on return.

    Args:
        metrics: serve and read metrics ports of the processors.

    Returns:
        The CPU times, and the unix time from which every processor had its tasks; 0 with a single processor.
    """
    domain = workload.name
    environment.say(f"filling {', '.join(workload.inputs)}")
    events = environment.fill(inputs)
    environment.say(f"processing {events:,} events with {instances} processor{'s' * (instances > 1)}")
    ports = free_ports(instances) if metrics else []
    children = []
    for number in range(1, instances + 1):
        environment.environment["ONEFOLD_METRICS_PORT"] = str(ports[number - 1]) if ports else "0"
        words = "process", domain, "--processes", "1", "--instance", str(number)
        children.append(environment.start(f"processor-{number}", *words))
    shared_at = 0.0
    if instances > 1:
        admin = kafka_client.admin({**environment.client})
        environment.wait(lambda: _shared_out(admin, domain, instances), _SHARE_S, "every processor has tasks")
        shared_at = time.time()
    broker = environment.infrastructure.kafka
    cpu = CpuSampler({"processor": [child.pid or 0 for child in children], "broker": [broker.pid or 0]})
    settings = environment.settings

    def folded() -> bool:
        for port in ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_ANSWER_S) as answer:
                answer.read()
        return offsets.lag_of(domain, settings)["input_events"] == 0

    environment.wait(folded, _DRAIN_S, "all events are processed", _ASK_EVERY_S)
    cpu.stop()
    for child in children:
        child.stop()
    return cpu, shared_at


def _shared_out(admin: AdminClient, domain: str, instances: int) -> bool:
    """Whether the group has all members, each with an assignment, which may be empty."""
    group = f"onefold-{domain}"
    described = admin.describe_consumer_groups([group])[group].result(_ANSWER_S)
    return described.state == ConsumerGroupState.STABLE and len(described.members) == instances


def measure(
    environment: BenchmarkEnvironment,
    workload: MeasuredPipeline,
    events: int,
    instances: int,
    seed: int,
    *,
    metrics: bool = False,
) -> dict[str, Any]:
    """Measure the processing of `events` events of a pipeline; see `fold`."""
    cpu, shared_at = fold(environment, workload, workload.generate(seed, events), instances, metrics)
    commits = _commits(environment, workload.name)
    if not commits:
        raise RuntimeError(f"the generator of {workload.name} made no event")
    start, end = shared_at or commits[0][0], commits[-1][0]
    if start >= end:
        raise RuntimeError(f"one processor processed all events before {instances} shared the work; give more --events")
    counted = _folded_after(commits, start)
    metered = max(start, cpu.since())
    counted_metered = _folded_after(commits, metered)

    def cpu_us(name: str) -> float | None:
        used = cpu.seconds(name, metered, end)
        return round(used / counted_metered * 1e6, 1) if counted_metered else None

    return {
        "pipeline": workload.name,
        "instances": instances,
        "metrics_asked_for": f"every {_ASK_EVERY_S} s" if metrics else None,
        "events": _folded(commits),
        "events_counted": counted,
        "transactions": len(commits),
        "seconds": round(end - start, 3),
        "events_per_second": round(counted / (end - start)),
        "processor_cpu_us_per_event": cpu_us("processor"),
        "broker_cpu_us_per_event": cpu_us("broker"),
    }


def _folded_after(commits: list[Commit], moment: float) -> int:
    """Number of events committed later than `moment`."""
    return _folded(commits) - _folded([commit for commit in commits if commit[0] <= moment])


def _folded(commits: list[Commit]) -> int:
    """Number of events by the last commit of each partition."""
    return sum({partition: folded for _, partition, folded in commits}.values())


def _commits(environment: BenchmarkEnvironment, domain: str) -> list[Commit]:
    """List every transaction that processed events, in order of time."""
    topic = f"{domain}.changelog"
    ends = offsets.stable_ends(kafka_client.admin({**environment.client}), [topic])
    commits: list[Commit] = []
    folded: defaultdict[int, int] = defaultdict(int)
    for message in between(environment.client, {place: (OFFSET_BEGINNING, end) for place, end in ends.items()}):
        partition, value = message.partition() or 0, message.value()
        if value is not None and message.key() == b"p":
            total = sum(json.loads(value)["counts"].values())
            if total > folded[partition]:
                folded[partition] = total
                commits.append((message.timestamp()[1] / 1000, partition, total))
    return sorted(commits)
