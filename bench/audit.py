"""What the auditor costs while a pipeline is at work, and how soon it names what was planted.

Processors, a sink and the auditor run, and a producer sends at a steady rate. A row is deleted by SQL, an output record is
written a second time, and so on in turn; each counts from its commit to the line of the auditor's log that names it. How far the
auditor is behind is in that: it names no record that it has not come to. A row that the next event of its key has written again
before a look is not missing any more: it counts as not named. What it costs to read all that it reads, and to do nothing with it,
is measured afterwards on the same topics, and taken off.
"""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from statistics import median
from typing import Any

from confluent_kafka import TopicPartition
from psycopg import sql

from onefold import kafka_client, kafka_offsets, postgres
from onefold.bench.cpu import CpuSampler
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.follower import Sender
from onefold.bench.hot_hot import start_sink
from onefold.bench.operate import name_of, some_keys
from onefold.bench.workload import Workload
from onefold.proof.log import Log
from onefold.proof.record import Record
from onefold.proof.state import topics_of
from onefold.proof.workloads import workload as judged
from onefold.stack.child import Child

# What is not named by then is counted as not named; the bar is five seconds.
_NAMED_S = 30.0
_LOOK_EVERY_S = 0.05
# Spark's first batch, in a JVM that has compiled nothing.
_LEVEL_S = 120.0
# How far back of the end a record is looked for that is written again: some hundred records are before the markers.
_BACK = 1_000

ROW, OUTPUT = "row that is deleted", "output that is doubled"


def measure(
    environment: BenchmarkEnvironment, workload: Workload, rate: int, seconds: float, plants: int, seed: int
) -> dict[str, Any]:
    """Audit a pipeline at `rate` events a second: for so many seconds nothing is wrong, then so many things are planted.

    Raises:
        RuntimeError: the auditor says that something is wrong before that, or knows of nothing that it has compared.
    """
    name = workload.name
    environment.say("starting the processor, the sink and the continuous verifier")
    environment.start("processor", "process", name)
    start_sink(environment, name, "audit")
    most = int(rate * (2 * _LEVEL_S + 2 * seconds + plants * _NAMED_S))
    sender = Sender(environment.client, workload.generate(seed, most), rate)
    sender.start()
    environment.wait(lambda: environment.landed(name) > 0, _LEVEL_S, "something is in the tables")
    auditor = environment.start("auditor", "audit", name)
    environment.say(f"auditing {rate:,} events a second for {seconds:.0f} s")
    assert auditor.pid is not None, "it runs"
    cpu = CpuSampler({"auditor": [auditor.pid]})
    try:
        # What it reads from the beginning is no part of what it costs to go on.
        environment.wait(lambda: _knows(auditor), _LEVEL_S, "the continuous verifier reports valid", _LOOK_EVERY_S)
        sent, began = sender.sent, time.time()
        environment.wait(lambda: time.time() > began + seconds, 2 * seconds, "the time is over")
        ended = time.time()
        events, used = sender.sent - sent, cpu.seconds("auditor", began, ended)
        if found := _divergences(auditor):
            raise RuntimeError(f"the continuous verifier reported a mismatch before a fault was injected: {found[0]}")
        took = {kind: list[float | None]() for kind in (ROW, OUTPUT)}
        for kind, _ in zip(cycle(took), range(plants), strict=False):
            environment.say(f"planted: a {kind}")
            took[kind].append(_named(environment, auditor, kind, name))
    finally:
        cpu.stop()
        sender.stop()
    auditor.stop()
    reading = _reading_s(environment, name) / sender.sent
    a_second = events / (ended - began)
    return {
        "pipeline": name,
        "events_per_second_asked": rate,
        "events_per_second": round(a_second),
        "auditor_us_an_event": round(used / events * 1e6, 1),
        "of_it_reading_us": round(reading * 1e6, 1),
        "beyond_reading_percent_of_a_core": round((used / events - reading) * a_second * 100, 1),
        **{key: figure for kind, each in took.items() for key, figure in _figures(kind, each).items()},
    }


def _figures(kind: str, took: Sequence[float | None]) -> dict[str, Any]:
    word, named = kind.split(" ")[0] + "s", [one for one in took if one is not None]
    return {
        f"{word}_planted": len(took),
        f"{word}_named": len(named),
        f"{word}_named_median_s": round(median(named), 1) if named else None,
        f"{word}_named_longest_s": round(max(named), 1) if named else None,
    }


def _lines(auditor: Child) -> list[dict[str, Any]]:
    """What it has said, a line each; of the last one maybe a part is there."""
    said = auditor.service.log.read_text(errors="replace", encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in said if line.startswith("{")]


def _divergences(auditor: Child) -> list[dict[str, Any]]:
    return [line for line in _lines(auditor) if line["event"] == "divergence"]


def _knows(auditor: Child) -> bool:
    said = [line["outcome"] for line in _lines(auditor) if line["event"] == "audited"]
    return bool(said) and said[-1] == "valid"


def _named(environment: BenchmarkEnvironment, auditor: Child, kind: str, name: str) -> float | None:
    """Seconds from a planted divergence to the auditor's word for just that; None: there was none in time."""
    wanted = _delete_a_row(environment.dsn, name) if kind == ROW else _double_an_output(environment.client, name)
    began = time.monotonic()
    try:
        environment.wait(
            lambda: any(wanted.items() <= line.items() for line in _divergences(auditor)),
            _NAMED_S,
            "it is named",
            _LOOK_EVERY_S,
        )
    except RuntimeError:
        return None
    return time.monotonic() - began


def _delete_a_row(dsn: str, name: str) -> dict[str, str]:
    """Returns what the auditor has to say."""
    table, _, (key,) = some_keys(dsn, name, 1)
    columns = [sql.SQL("{}::text = %s").format(sql.Identifier(column)) for column in key]
    query = sql.SQL("DELETE FROM {} WHERE {}").format(name_of(table), sql.SQL(" AND ").join(columns))
    with postgres.connect(dsn, "onefold bench", autocommit=False) as connection:
        connection.execute(query, list(key.values()))
    said = ", ".join(f"{column} {value}" for column, value in key.items())
    return {"kind": "missing row", "where": table, "key": said}


def _double_an_output(client: dict[str, str], name: str) -> dict[str, str]:
    """One of the last records of an output topic, as it lies there, once more. Returns what the auditor has to say."""
    topic, partition = min(judged(name).outputs), 0
    with closing(kafka_client.consumer(client)) as consumer:
        _, end = kafka_offsets.bounds(consumer, (topic, partition), 10)
        consumer.assign([TopicPartition(topic, partition, max(0, end - _BACK))])
        found = consumer.consume(1, timeout=10)
    if not found or found[0].error() is not None:
        raise RuntimeError(f"{topic}/{partition} has no record that could be doubled")
    record, producer, lies_at = found[0], kafka_client.producer(client), list[int | None]()
    producer.produce(
        topic,
        record.value(),
        record.key(),
        partition,
        headers=record.headers(),
        on_delivery=lambda error, message: lies_at.append(message.offset() if error is None else None),
    )
    producer.flush(10)
    if not lies_at or lies_at[0] is None:
        raise RuntimeError(f"Kafka did not take a record for {topic}/{partition}")
    return {"kind": "doubled output", "output": f"{topic}/{partition}/{lies_at[0]}"}


def _reading_s(environment: BenchmarkEnvironment, name: str) -> float:
    """Processor seconds that it takes to have every record of all that the auditor reads, and to do nothing with it."""

    def nothing(record: Record) -> None:
        pass

    with closing(Log(environment.client, topics_of(judged(name)).all)) as log:
        began = time.process_time()
        log.read(log.stable_ends(), nothing)
        return time.process_time() - began
