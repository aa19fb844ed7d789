"""Measure what operators wait for: a verification from the start, explained rows, and a rebuild; and the drain of the same stack.

The inputs are produced first, and the sink runs. The drain begins with the processors, and ends when the tables have all
rows. Each command then runs alone, while processors and sink are idle. A command that fails, or a row without explanation,
fails the benchmark.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from psycopg import sql

from onefold import postgres
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.hot_hot import start_sink
from onefold.bench.workload import MeasuredPipeline
from onefold.config.settings import Settings
from onefold.operate.explain.explain import explain
from onefold.verify.loading import workload

_DRAIN_S = 3_600.0
# A request for the lag costs broker and database a little.
_ASK_EVERY_S = 0.5


def measure(
    environment: BenchmarkEnvironment, workload: MeasuredPipeline, events: int, explained: int, seed: int
) -> dict[str, Any]:
    """Drain `events`, verify from the start, explain `explained` rows of the largest table, and rebuild all tables.

    Raises:
        RuntimeError: the drain takes too long, a command fails, or a row has no explanation.
    """
    name = workload.name
    environment.say(f"filling {', '.join(workload.inputs)}")
    environment.fill(workload.generate(seed, events))
    sink = start_sink(environment, name, "drain")
    environment.say(f"draining {events:,} events")
    began = time.monotonic()
    processor = environment.start("processor", "process", name)
    written = "all output records are written to PostgreSQL"
    environment.wait(lambda: environment.drained(name), _DRAIN_S, written, _ASK_EVERY_S)
    drain_s = time.monotonic() - began

    environment.say("verifying the whole log from the beginning")
    verdict, verify_s = _timed(environment, "verify", name, "--from-start", "--json")
    table, rows, keys = _some_keys(environment.dsn, name, explained)
    environment.say(f"explaining rows of {table}")
    taken, read = zip(*_explained(environment.settings, environment.dsn, table, keys), strict=True)
    environment.say(f"rebuilding the tables of {name} in a temporary database")
    rebuilt, rebuild_s = _timed(environment, "rebuild", name, "--dry-run", "--json")
    processor.stop()
    sink.stop()
    return {
        "pipeline": name,
        "events": events,
        "cores": os.cpu_count(),
        "drain_s": round(drain_s, 1),
        "verify_from_start_s": round(verify_s, 1),
        "verify": verdict["outcome"],
        "explained_table": table,
        "explained_table_rows": rows,
        "rows_explained": len(taken),
        "explain_median_s": round(median(taken), 2),
        "explain_longest_s": round(max(taken), 2),
        "explain_records_read_longest": max(read),
        "rebuild_s": round(rebuild_s, 1),
        "rebuild_rows_compared": sum(one["rows"] for one in rebuilt["tables"]),
        "rebuild_rows_that_differ": rebuilt["differing"],
        "rebuild_live_sink_held_up_s": round(rebuilt["held_s"], 1),
    }


def _timed(environment: BenchmarkEnvironment, *arguments: str) -> tuple[dict[str, Any], float]:
    """Run a command. Return the JSON output and the duration in seconds, with Python's start."""
    began = time.monotonic()
    said = environment.run(*arguments)
    return json.loads(said), time.monotonic() - began


def _some_keys(dsn: str, pipeline: str, count: int) -> tuple[str, int, list[dict[str, str]]]:
    """Return the pipeline's largest table with a key, its number of rows, and the keys of `count` random rows."""
    with postgres.connect(dsn, "onefold bench", autocommit=False) as connection:
        sizes = [
            (
                connection.execute(sql.SQL("SELECT count(*) FROM {}").format(_name_of(table.name))).fetchone() or (0,),
                table,
            )
            for table in workload(pipeline).tables
            if table.key and not table.summed
        ]
        if not sizes:
            raise RuntimeError(f"{pipeline} has no table whose rows can be explained")
        (rows,), table = max(sizes, key=lambda one: one[0])
        columns = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column)) for column in table.key)
        drawn = sql.SQL("SELECT {} FROM {} ORDER BY random() LIMIT %s").format(columns, _name_of(table.name))
        found = connection.execute(drawn, (count,)).fetchall()
    if not found:
        raise RuntimeError(f"{table.name} has no row")
    return table.name, rows, [dict(zip(table.key, key, strict=True)) for key in found]


def _name_of(table: str) -> sql.Identifier:
    """Identifier of a qualified table name."""
    return sql.Identifier(*table.split("."))


def _explained(settings: Settings, dsn: str, table: str, keys: list[dict[str, str]]) -> Iterator[tuple[float, int]]:
    """(seconds, records read) of each row. Raises RuntimeError if the source record of a row is not found."""
    for key in keys:
        began = time.monotonic()
        found = explain(settings, dsn, table, key)
        if found.row is None or found.output is None:
            raise RuntimeError(f"{_text(key)} of {table} is not explained: {'; '.join(found.notes)}")
        yield time.monotonic() - began, found.records_read


def _text(key: Mapping[str, str]) -> str:
    return " ".join(f"{column}={value}" for column, value in key.items())
