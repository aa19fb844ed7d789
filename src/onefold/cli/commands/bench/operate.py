"""`onefold bench operate`: how long a verdict, an explained row and a rebuild take."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Events, Partitions, Pipeline, Seed, run


def command(
    events: Events = 2_000_000,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="How many rows are explained, drawn by lot.")] = 20,
    pipeline: Pipeline = "",
    partitions: Partitions = PARTITIONS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """How long a verdict from the beginning takes beside the drain that it judges, an explained row, and a rebuild.

    Example: onefold bench operate --pipeline trades
    """
    from onefold.bench import operate

    run(
        "operate",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: operate.measure(place, workload, events, rows, seed),
    )
