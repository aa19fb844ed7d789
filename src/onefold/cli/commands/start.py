"""`onefold start`: start stopped services of the embedded stack."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.operate.progress import StageProgress
from onefold.stack import control


def command(
    services: Annotated[
        list[str] | None,
        typer.Argument(metavar="SERVICE", help="Names from `onefold status`. Default: all stopped services."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the started services as JSON.")] = False,
) -> None:
    """Start services of the running stack that `onefold stop` has stopped, and return when the services are ready.

    Example: onefold start sink-1
    """
    started = control.set_stopped(load(), services or [], False, StageProgress())
    if as_json:
        typer.echo(json.dumps({"started": started}))
        return
    for name in [] if started else services or []:
        typer.echo(f"{name} was not stopped.")
    if not started and not services:
        typer.echo("No service was stopped.")
