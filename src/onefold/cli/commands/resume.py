"""`onefold resume`: end the pauses of pipelines."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.operate import pausing, ping, pipelines


def command(
    domains: Annotated[list[str], typer.Argument(metavar="PIPELINE...", help="The pipelines, as runner.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the pipelines that were paused as JSON.")] = False,
) -> None:
    """End the pauses of pipelines: processors, workers and sinks continue where they stopped. A sink reads the pipeline's files
    again.

    Example: onefold resume runner
    """
    settings = load()
    names = pipelines.checked(domains)
    ping.require_kafka(settings)
    resumed = pausing.resume(names, settings)
    if as_json:
        typer.echo(json.dumps({"resumed": resumed}))
        return
    for name in names:
        typer.echo(f"{name} goes on." if name in resumed else f"{name} was not paused.")
