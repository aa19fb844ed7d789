"""`onefold restart`: restart a service of the embedded stack."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.operate.progress import StageProgress
from onefold.stack import control


def command(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="A name from `onefold status`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the pid of the new process as JSON.")] = False,
) -> None:
    """Restart a service, and return when the new process is ready. The service's pipelines wait, and no record is lost.

    Example: onefold restart sink-1
    """
    entry = control.restart(load(), service, StageProgress())
    if as_json:
        typer.echo(json.dumps({"service": service, "pid": entry["pid"]}))
        return
    typer.echo(f"{service} is ready again, as process {entry['pid']}.")
