"""`onefold down`: stops the embedded stack."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.operate.settings import load
from onefold.stack import control


def command(
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Also forget the data: topics, tables, checkpoints, logs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Stop all services that `onefold up` started, in reverse order. Without --wipe the data stays.

    Example: onefold down --wipe
    """
    settings = load()
    stopped = control.down(settings, wipe)
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "wiped": wipe}))
        return
    typer.echo("The stack is stopped." if stopped else "The stack was not running.")
    typer.echo("Its data is removed." if wipe else f"Its data stays in {settings.home}.")
