"""`onefold bench audit`: what the auditor costs, and how soon it names what is wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Partitions, Pipeline, Seed, run


def command(
    rate: Annotated[int, typer.Option(min=1, help="Events a second.")] = 5_000,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long nothing is wrong.")] = 30.0,
    plants: Annotated[int, typer.Option(min=0, help="How many things are wrong then, one after the other.")] = 10,
    pipeline: Pipeline = "",
    partitions: Partitions = PARTITIONS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """What the auditor of a pipeline at work costs beyond reading, and how soon it names rows that are deleted, and outputs that
    are there twice.

    Example: onefold bench audit --pipeline trades --rate 5000
    """
    from onefold.bench import audit

    run(
        "audit",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: audit.measure(place, workload, rate, seconds, plants, seed),
    )
