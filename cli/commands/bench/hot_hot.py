"""`onefold bench hot-hot`: how long nothing is decided when a process is killed."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands.bench.common import AsJson, Partitions, Pipeline, Seed, run


def command(
    rate: Annotated[int, typer.Option(min=1, help="Events a second.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=1.0, help="Without a kill, and between two kills.")] = 5.0,
    kills: Annotated[int, typer.Option(min=0, help="Of one of two processes, in each mode.")] = 20,
    pipeline: Pipeline = "",
    partitions: Partitions = 2,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """How long nothing is decided when one of two processes is killed: with replicas, and elastic beside it.

    Example: onefold bench hot-hot --rate 1000 --kills 20
    """
    from onefold.bench import hot_hot

    run(
        "hot-hot",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: hot_hot.measure(place, workload, partitions, rate, seconds, kills, seed),
    )
