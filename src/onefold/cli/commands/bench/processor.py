"""`onefold bench processor`: processed events a second."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Events, Partitions, Pipeline, Seed, run


def command(
    events: Events = 500_000,
    instances: Annotated[int, typer.Option(min=0, max=16, help="Processors side by side; 0: one for each core.")] = 0,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Processors tell metrics, and are asked for them twice a second.")
    ] = False,
    pipeline: Pipeline = "",
    partitions: Partitions = PARTITIONS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Measure the processed events a second, from a topic that was filled before.

    Example: onefold bench processor --pipeline trades --instances 1
    """
    from onefold.bench import processor

    count = instances or min(os.cpu_count() or 1, partitions)
    run(
        "processor",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: processor.measure(place, workload, events, count, seed, metrics=metrics),
    )
