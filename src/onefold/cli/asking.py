"""A confirmation prompt before an irreversible command."""

from __future__ import annotations

import sys

import typer

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, USAGE


def confirm(what: str, yes: bool, as_json: bool = False) -> None:
    """Return with `yes`, or after the user's confirmation on the terminal.

    Args:
        what: a sentence without the full stop: the command's effect, and the object.

    Raises:
        UserError: no terminal, or JSON output (exit code 2).
        typer.Exit: the user does not confirm (exit code 1).
    """
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise UserError(
            Code.NOT_CONFIRMED,
            f"{what}; there is no terminal to ask on, and nothing was done",
            "Add --yes if it is meant.",
            USAGE,
        )
    typer.echo(f"{what[:1].upper()}{what[1:]}.", err=True)
    if not typer.confirm("Go on?", err=True):
        typer.echo("Nothing was done.", err=True)
        raise typer.Exit(FAILED)
