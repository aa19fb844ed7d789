"""`onefold bench hot-hot`: how long nothing is decided when a process is killed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from onefold.cli.commands.bench.common import AsJson, Partitions, Pipeline, Seed, run


class From(StrEnum):
    """What fills the tables; the bench's own names, which are imported when it runs."""

    TOPICS = "topics"
    LOG = "log"


def command(
    rate: Annotated[int, typer.Option(min=1, help="Events a second.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=1.0, help="Between two kills.")] = 5.0,
    kills: Annotated[int, typer.Option(min=0, help="Of one of two processes, in each mode.")] = 20,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop a process for 3 s (SIGSTOP) and resume it, instead of killing it.")
    ] = False,
    rows: Annotated[
        From | None,
        typer.Option(help="Run a sink too, which fills the tables from there, and measure the gap in rows."),
    ] = None,
    warm_up: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds before anything counts; 5, and 30 with --rows.", show_default=False),
    ] = None,
    untouched: Annotated[
        float | None,
        typer.Option(min=1.0, help="Seconds without a kill; as long as all kills take.", show_default=False),
    ] = None,
    pipeline: Pipeline = "",
    partitions: Partitions = 2,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """How long nothing is decided, and no row lands, when one of two processes is killed: with replicas, and elastic beside it.

    Example: onefold bench hot-hot --rate 1000 --kills 20 --rows log
    """
    from onefold.bench import hot_hot

    source = hot_hot.RowsFrom(rows) if rows else None
    if warm_up is None:
        warm_up = hot_hot.WARM_UP_ROWS_S if source else hot_hot.WARM_UP_S
    plan = hot_hot.Plan(rate, seconds, kills, stop, source, warm_up, untouched)
    run(
        "hot-hot",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: hot_hot.measure(place, workload, partitions, plan, seed),
    )
