"""`onefold bench peers`: Onefold and Kafka Streams in interleaved runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Partitions, Seed, fresh_stack
from onefold.cli.console import console
from onefold.config.errors import UserError
from onefold.config.settings import INSTANCES_MAX
from onefold.error_codes import Code
from onefold.exit_codes import FAILED

if TYPE_CHECKING:
    from onefold.bench.peers.turns import PeersPlan

_COLUMNS = {
    "warm_events_per_second": "msg/s, warm",
    "quarters": "by quarter, thousands",
    "cpu_us": "CPU µs a msg",
    "broker_cpu_us": "broker µs a msg",
    "memory_mib": "MiB",
    "steal_pct": "steal %",
}


class StoreOption(StrEnum):
    """The state store of Kafka Streams, with the values of `StreamsStore`, whose import only a run needs."""

    MEMORY = "memory"
    ROCKSDB = "rocksdb"


def command(
    events: Annotated[int, typer.Option(min=100_000, help="Messages in the topic beforehand.")] = 1_500_000,
    rounds: Annotated[int, typer.Option(min=1, help="Each program has a turn in every round.")] = 3,
    processes: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=INSTANCES_MAX,
            help="Processes of Onefold; one for each core if not given. Given twice, it has two turns a round.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Of Kafka Streams; 0: one for each core.")] = 0,
    store: Annotated[StoreOption, typer.Option(help="Where Kafka Streams keeps its states.")] = StoreOption.MEMORY,
    commit_ms: Annotated[int, typer.Option(min=10, help="Between two transactions of Kafka Streams.")] = 1_000,
    partitions: Partitions = PARTITIONS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Compare Onefold with Kafka Streams: the same rule over the same records of one broker, in interleaved runs. Checks
    both results.

    The command downloads the jars of Kafka Streams, and compiles the program with a JDK 17 or 21.

    Example: onefold bench peers --rounds 3 --processes 2 --processes 1
    """
    from onefold.bench.peers import streams, turns

    cores = min(os.cpu_count() or 1, partitions)
    options = streams.Options(threads or cores, streams.StreamsStore(store.value), commit_ms)
    plan = turns.PeersPlan(events, rounds, processes or [cores], options, seed)
    streams.compiler()  # reports a missing JDK before the start
    with fresh_stack(turns.PIPELINE, partitions) as (place, described):
        taken = [*turns.take(place, plan)]
    ratios = turns.ratios(taken)
    if as_json:
        asked = {"events": events, "threads": options.threads, "store": store.value, "commit_ms": commit_ms}
        told = {"bench": "peers", "machine": described, "asked": asked, "turns": taken, "ratios": ratios}
        typer.echo(json.dumps(told, indent=1))
    else:
        _render(described, plan, taken, ratios)
    if wrong := [turn for turn in taken if turn["answer"] != turns.RIGHT]:
        raise UserError(
            Code.MEASUREMENT_FAILED,
            f"{wrong[0]['program']} gave a wrong answer: {wrong[0]['answer']}",
            exit_code=FAILED,
        )


def _render(
    described: Mapping[str, str],
    plan: PeersPlan,
    taken: Sequence[Mapping[str, Any]],
    ratios: Mapping[str, Mapping[str, Sequence[float]]],
) -> None:
    out, options = console(), plan.options
    for name, value in described.items():
        out.print(f"{name}: {value}", style="dim", highlight=False)
    out.print(
        f"{plan.events:,} messages; Kafka Streams with {options.threads} threads, states in {options.store.value}, "
        f"a commit every {options.commit_ms:,} ms",
        highlight=False,
    )
    table = Table(title="onefold bench peers", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("by turns")
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right")
    for _, turns in groupby(taken, itemgetter("round")):
        for turn in turns:
            table.add_row(turn["program"], *(_cell(turn[name]) for name in _COLUMNS))
        table.add_section()
    out.print(table)
    for name, of in ratios.items():
        rates, cpu = of["warm_rate"], of["cpu"]
        out.print(
            f"{name}: {min(rates)} times the rate of Kafka Streams in the worst round and {max(rates)} in the best, "
            f"{max(cpu)} and {min(cpu)} times its CPU.",
            highlight=False,
        )


def _cell(value: float | list[int | None]) -> str:
    if isinstance(value, list):
        return " ".join("-" if rate is None else str(round(rate / 1000)) for rate in value)
    return f"{value:,}"
