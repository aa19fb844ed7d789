"""`onefold down`: stops the embedded stack."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.cli import asking
from onefold.operate.settings import load
from onefold.stack import control, homes


def command(
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Also remove the data: topics, tables, states, objects, checkpoints, logs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --wipe.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Stop all services that `onefold up` started, in reverse order. Without --wipe the data stays.

    --wipe removes only what a stack of Onefold has written into its home, and follows no link.

    Example: onefold down --wipe
    """
    settings = load()
    if wipe:
        homes.refuse_foreign(settings.home)
        if homes.is_ours(settings.home):
            what = f"`onefold down --wipe` removes the topics, tables, states, objects and logs of the stack in {settings.home}"
            asking.confirm(what, yes, as_json)
    stopped, stays = control.down(settings, wipe)
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "wiped": wipe, "stays": stays}))
        return
    typer.echo("The stack is stopped." if stopped else "The stack was not running.")
    if wipe:
        typer.echo("\n".join(["Its data is removed.", *(f"{sentence}." for sentence in stays)]))
    else:
        typer.echo(f"Its data stays in {settings.home}.")
