"""`onefold bench latency`: from produce to a visible row."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Partitions, Pipeline, Seed, run

# In the first minutes the JVM's JIT compilation takes CPU time, which a long-running service does not have.
_WARM_UP_S = 90.0


def command(
    rate: Annotated[int, typer.Option(min=1, help="Events a second.")] = 1_000,  # what a small deployment has
    seconds: Annotated[float, typer.Option(min=1.0, help="How long, after the warm-up.")] = 60.0,
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds before that which do not count.")] = _WARM_UP_S,
    pipeline: Pipeline = "",
    partitions: Partitions = PARTITIONS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Measure the latency from produce to a visible row, at a steady rate.

    Example: onefold bench latency --rate 500 --seconds 30
    """
    from onefold.bench import latency

    run(
        "latency",
        pipeline,
        partitions,
        as_json,
        lambda place, workload: latency.measure(place, workload, rate, seconds, seed, warm_up),
    )
