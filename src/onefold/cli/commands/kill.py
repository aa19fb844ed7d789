"""`onefold kill`: end services of the embedded stack with SIGKILL."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.stack import control


def command(
    services: Annotated[list[str], typer.Argument(metavar="SERVICE", help="Names from `onefold status`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the pids of the killed processes as JSON.")] = False,
) -> None:
    """Kill processes of services with SIGKILL, as a crash would. The stack starts the services again, and nothing is lost.

    Example: onefold kill sink-1
    """
    killed = control.kill(load(), services)
    if as_json:
        typer.echo(json.dumps({"killed": killed}))
        return
    for name, pid in killed.items():
        typer.echo(f"{name} was killed, process {pid}; the stack starts it again.")
