"""`onefold bench hot-hot`: the pause after the kill of a process."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands.bench.common import AsJson, Partitions, Pipeline, Seed, run


def command(
    rate: Annotated[int, typer.Option(min=1, help="Events a second.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=1.0, help="Between two kills.")] = 5.0,
    kills: Annotated[int, typer.Option(min=0, help="Of one of two processes, in each mode.")] = 20,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop a process for 3 s (SIGSTOP) and resume it, instead of killing it.")
    ] = False,
    rows: Annotated[bool, typer.Option("--rows", help="Run a sink too, and measure the gap in rows.")] = False,
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
    """Measure the pause of decisions after the kill of one of two processes, with replicas and with partitioned tasks. --rows
    also measures the pause of rows.

    Example: onefold bench hot-hot --rate 1000 --kills 20 --rows
    """
    from onefold.bench import hot_hot

    if warm_up is None:
        warm_up = hot_hot.WARM_UP_ROWS_S if rows else hot_hot.WARM_UP_S
    plan = hot_hot.KillPlan(rate, seconds, kills, stop, rows, warm_up, untouched)
    run(
        "hot-hot",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: hot_hot.measure(place, workload, partitions, plan, seed),
    )
