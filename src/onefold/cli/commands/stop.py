"""`onefold stop`: stop services of the embedded stack."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.operate.progress import StageProgress
from onefold.stack import control


def command(
    services: Annotated[
        list[str] | None, typer.Argument(metavar="SERVICE", help="Names from `onefold status`. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stopped services as JSON.")] = False,
) -> None:
    """Stop services of the running stack, and return when the services are stopped. All other services run on, and no record is
    lost. `onefold start` or `onefold up` starts the services again. `onefold down` stops the whole stack.

    Example: onefold stop sink-1
    """
    stopped = control.set_stopped(load(), services or [], True, StageProgress())
    if as_json:
        typer.echo(json.dumps({"stopped": stopped}))
        return
    for name in stopped or services or []:
        typer.echo(f"{name} is stopped{'.' if name in stopped else ' already.'}")
