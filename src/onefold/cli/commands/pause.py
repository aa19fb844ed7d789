"""`onefold pause`: pause the processors, workers and sinks of single pipelines."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.operate import pausing, ping, pipelines


def command(
    domains: Annotated[list[str], typer.Argument(metavar="PIPELINE...", help="The pipelines, as runner.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for everybody who looks at the status.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the pauses as JSON.")] = False,
) -> None:
    """Pause pipelines: the processors, workers and sinks finish the current transaction, job or batch, and then do nothing for
    these pipelines. All other pipelines run on, and no process exits. A pause outlives restarts. `onefold resume` ends it.

    No record is lost: new records wait in Kafka. Make sure that the topics' retention is longer than the pause. Processors and
    workers load no changed code at the end of a pause: restart the processes before the end.

    Example: onefold pause runner --reason "new rule"
    """
    settings = load()
    names = pipelines.checked(domains)
    ping.require_kafka(settings)
    paused = pausing.pause(names, settings, reason)
    if as_json:
        typer.echo(json.dumps({name: pausing.as_data(pause) for name, pause in paused.items()}, indent=1))
        return
    for name, pause in paused.items():
        typer.echo(f"{name} is {pause}. `onefold resume {name}` ends the pause.")
