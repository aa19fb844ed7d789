"""How soon a new replica of many keys is level with one that has been there, while events go on.

A backlog is folded by an elastic process first, which is the fastest way to many keys. Then replicas are started one after the
other, and a producer sends at a steady rate. The clock of each starts with its process, and ends when its status is *running*: by
then it has restored every task, and has read every decision log to its end.
"""

import json
import time
from itertools import islice
from typing import Any

from onefold import kafka_client
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.follower import Follower, Sender
from onefold.bench.hot_hot import judged, process, start_sink
from onefold.bench.rows import gaps
from onefold.bench.workload import Workload
from onefold.config.settings import Settings
from onefold.operate import positions
from onefold.processor.loading import topology_of
from onefold.stack.child import Child

_FOLD_S = 600.0
# Several times the bar of thirty seconds, which is for whoever reads the figure to hold against it.
_LEVEL_S = 180.0
# Long enough that a longest gap says something.
_CALM_S = 10.0
_DRAIN_S = 60.0
# The sink lands all of it afterwards: several rows an event, in a slow hour 10,000 a second.
_JUDGED_S = 1_800
# Events are sent for as long as all of this takes, and not for longer.
_SENT_S = 2 * _LEVEL_S + 2 * _CALM_S


def measure(
    environment: BenchmarkEnvironment, workload: Workload, partitions: int, events: int, rate: int, seed: int
) -> dict[str, Any]:
    """Fold `events`, then have two replicas come, while `rate` events a second go on. The judge has the last word.

    Raises:
        RuntimeError: a replica does not get level, or what came of it all is not as it should be.
    """
    name, topology = workload.name, topology_of(workload.name)
    inputs = workload.generate(seed, events + round(rate * _SENT_S))
    settings = Settings(bootstrap_servers=environment.client["bootstrap.servers"], postgres_dsn=environment.dsn)
    environment.say(f"filling {', '.join(workload.inputs)}, and processing the events")
    elastic = environment.start(*process(name, 0))
    environment.fill(islice(inputs, events))
    environment.wait(
        lambda: positions.lag_of(name, settings)["input_events"] == 0, _FOLD_S, "all events are processed", 0.5
    )
    elastic.stop()

    environment.environment["ONEFOLD_REPLICAS"] = "2"
    ends = positions.stable_ends(kafka_client.admin({**environment.client}), workload.inputs)
    follower = Follower(environment.client, topology.decisions, ends, partitions)
    sender = Sender(environment.client, inputs, rate)
    follower.start()
    sender.start()
    try:
        first, first_s = _level(environment, name, 0)
        began = time.time()
        time.sleep(_CALM_S)
        joined = time.time()
        newcomer, newcomer_s = _level(environment, name, 1)
        level = time.time()
    finally:
        sender.stop()
    environment.say("draining")
    ends = positions.stable_ends(kafka_client.admin({**environment.client}), workload.inputs)
    environment.wait(
        lambda: all(follower.reached[place] >= end for place, end in ends.items()), _DRAIN_S, "all is decided"
    )
    follower.stop()
    figures = {
        "pipeline": name,
        "partitions": partitions,
        "keys": _keys(environment, 1),
        "events_per_second": rate,
        "first_replica_level_s": round(first_s, 1),
        "new_replica_level_s": round(newcomer_s, 1),
        "longest_gap_before_it_came_ms": round(1000 * gaps(follower.moments, began, joined)[0]),
        "longest_gap_while_it_came_ms": round(1000 * gaps(follower.moments, joined, level)[0]),
    }
    first.stop()
    newcomer.stop()
    sink = start_sink(environment, name, "hot_hot")
    figures |= judged(environment, name, "hot_hot", _JUDGED_S)
    sink.stop()
    return figures


def _level(environment: BenchmarkEnvironment, name: str, number: int) -> tuple[Child, float]:
    """Start a replica and wait until every task runs; how many seconds that took."""
    environment.say(f"replica {number + 1} comes")
    began = time.time()
    child = environment.begin(*process(name, number))
    child.wait_ready(_LEVEL_S)
    return child, time.time() - began


def _keys(environment: BenchmarkEnvironment, number: int) -> int:
    """How many it had restored, by its own log."""
    lines = (environment.home / "logs" / f"processor-{number}.log").read_text(encoding="utf-8").splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    return sum(one["keys"] for one in said if one.get("event") == "task runs")
