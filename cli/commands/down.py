"""`onefold down`: stops the embedded stack."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from onefold.exit_codes import FAILED, USAGE
from onefold.operate.errors import UserError
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
        if not yes and homes.is_ours(settings.home):
            _ask(settings.home, as_json)
    stopped, stays = control.down(settings, wipe)
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "wiped": wipe, "stays": stays}))
        return
    typer.echo("The stack is stopped." if stopped else "The stack was not running.")
    if wipe:
        typer.echo("\n".join(["Its data is removed.", *(f"{sentence}." for sentence in stays)]))
    else:
        typer.echo(f"Its data stays in {settings.home}.")


def _ask(home: Path, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise UserError(
            f"`onefold down --wipe` removes all data of the stack in {home}, and there is no terminal to ask on",
            "Add --yes to remove the data.",
            USAGE,
        )
    if not typer.confirm(f"Remove the topics, tables, states, objects and logs of the stack in {home}?"):
        typer.echo("Nothing was removed.")
        raise typer.Exit(FAILED)
