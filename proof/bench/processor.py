"""How many events a second the processor folds, transactions and all.

The input topic is filled first (JSON, with duplicates and late ones), then the processors start. The clock is the
processor's own progress records in the changelog, one a transaction: from the first committed transaction to the last,
and only events committed after the first one count. So neither start-up nor this program's looking is in the figure.
"""

import json
from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from console import lag
from console.settings import Settings
from proof.bench.meter import Meter
from proof.bench.stand import Stand
from proof.workloads import runner

_CHANGELOG = "runner.changelog"
_DRAIN_S = 600.0
# Asking for the lag costs the broker a little; the figure does not come from it.
_LOOK_S = 0.5

#: (unix time, partition, events folded so far in that partition), one a transaction
Commit = tuple[float, int, int]


def fold(stand: Stand, events: int, instances: int, seed: int) -> Meter:
    """Fill the input topic and fold all of it; the processors are gone afterwards."""
    stand.say(f"filling {runner.TOPIC} with {events:,} events")
    stand.fill(runner.generate(seed, events))
    stand.say(f"folding them with {instances} processor{'s' * (instances > 1)}")
    children = [
        stand.start(f"processor-{number}", "process", "runner", "--instance", str(number))
        for number in range(1, instances + 1)
    ]
    broker = stand.infrastructure.kafka
    meter = Meter({"processor": [child.pid or 0 for child in children], "broker": [broker.pid or 0]})
    settings = Settings(bootstrap_servers=stand.client["bootstrap.servers"], postgres_dsn=stand.dsn)
    folded = lambda: lag.of_domain("runner", settings)["input_events"] == 0  # noqa: E731
    stand.wait(folded, _DRAIN_S, "all events are folded", _LOOK_S)
    meter.stop()
    for child in children:
        child.stop()
    return meter


def measure(stand: Stand, events: int, instances: int, seed: int) -> dict[str, Any]:
    """The figures of folding `events` events."""
    meter = fold(stand, events, instances, seed)
    commits = _commits(stand)
    start, end = commits[0][0], commits[-1][0]
    counted = _folded(commits) - commits[0][2]
    # With several instances the first one is at work before the last one is measured.
    metered = max(start, meter.since())
    counted_metered = _folded(commits) - _folded([commit for commit in commits if commit[0] <= metered])

    def cpu_us(name: str) -> float | None:
        used = meter.seconds(name, metered, end)
        return round(used / counted_metered * 1e6, 1) if counted_metered else None

    return {
        "events": _folded(commits),
        "transactions": len(commits),
        "seconds": round(end - start, 3),
        "events_per_second": round(counted / (end - start)),
        "processor_cpu_us_per_event": cpu_us("processor"),
        "broker_cpu_us_per_event": cpu_us("broker"),
    }


def _folded(commits: list[Commit]) -> int:
    """By the last of them in each partition."""
    return sum({partition: folded for _, partition, folded in commits}.values())


def _commits(stand: Stand) -> list[Commit]:
    """Every transaction that folded something, in order of time."""
    settings = {"group.id": "onefold-bench", "isolation.level": "read_committed", "enable.partition.eof": True}
    with closing(Consumer({**stand.client, **settings, "enable.auto.commit": False})) as consumer:
        partitions = consumer.list_topics(_CHANGELOG, timeout=10).topics[_CHANGELOG].partitions
        consumer.assign([TopicPartition(_CHANGELOG, partition, OFFSET_BEGINNING) for partition in partitions])
        commits: list[Commit] = []
        folded = dict.fromkeys(partitions, 0)
        ended: set[int] = set()
        while ended != set(partitions):
            for message in consumer.consume(5000, 1.0):
                if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif message.error() is None and message.key() == b"p":
                    total = sum(json.loads(message.value())["counts"].values())
                    if total > folded[message.partition()]:
                        folded[message.partition()] = total
                        commits.append((message.timestamp()[1] / 1000, message.partition(), total))
    return sorted(commits)
