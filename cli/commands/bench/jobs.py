"""`onefold bench jobs`: jobs that arrive in the wrong order."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands.bench.common import AsJson, Seed, run


def command(
    jobs: Annotated[int, typer.Option(min=2, max=100, help="Jobs of the log.")] = 8,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """How long the jobs of one log take when the last one comes first: each woken by the one before it, and by backoff alone.

    Example: onefold bench jobs --jobs 12
    """
    from onefold.bench import jobs as bench

    run("jobs", bench.PIPELINE, 1, as_json, lambda place, workload: bench.measure(place, jobs, seed))
