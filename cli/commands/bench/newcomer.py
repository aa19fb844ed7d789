"""`onefold bench newcomer`: how soon a new replica of many keys is level."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands.bench.common import AsJson, Partitions, Pipeline, Seed, run


def command(
    events: Annotated[
        int, typer.Option(min=1000, help="Events processed before a replica joins; half of all trades are new keys.")
    ] = 2_100_000,
    rate: Annotated[int, typer.Option(min=1, help="Events a second meanwhile.")] = 1_000,
    pipeline: Pipeline = "",
    partitions: Partitions = 2,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """How soon a new replica of many keys is level, while events go on, and for how long nothing is decided meanwhile.

    Example: onefold bench newcomer --pipeline trades
    """
    from onefold.bench import newcomer

    run(
        "newcomer",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: newcomer.measure(place, workload, partitions, events, rate, seed),
    )
