"""`onefold state get`: the state of a key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from onefold import exit_codes
from onefold.config.settings import load
from onefold.operate.progress import StageProgress
from onefold.operate.shown_values import moment
from onefold.printable import printable

if TYPE_CHECKING:
    from onefold.operate.key_state import KeyState


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as campaigns.")],
    key: Annotated[str, typer.Argument(help="The state's key, as the topology names it.")],
    at: Annotated[
        str | None, typer.Option(help="As of this offset of the changelog, PARTITION:OFFSET, itself included.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the state of a key, now or at an offset of the changelog: the last committed record of the key up to there.

    Exit code 1: the key has no state.

    Example: onefold state get campaigns 1 --at 3:1200
    """
    from onefold.operate import key_state  # imports Kafka's client, which `--help` does not need

    progress = StageProgress()
    try:
        found = key_state.get(
            load(), domain, key, at, lambda what, records: progress.say(f"reading {what}: {records:,} records")
        )
    finally:
        progress.clear()
    if as_json:
        typer.echo(json.dumps(vars(found), indent=1))
    else:
        typer.echo(f"{domain} {printable(key)}: {_heading(found)}")
        if found.value is not None:
            text = json.dumps(found.value, ensure_ascii=False, indent=1)
            typer.echo("\n".join(map(printable, text.splitlines())))
        elif found.raw is not None:
            typer.echo(printable(found.raw))
    raise typer.Exit(exit_codes.OK if found.value is not None else exit_codes.FAILED)


def _heading(state: KeyState) -> str:
    if state.at is None:
        return state.note
    note = f" ({state.note})" if state.note else ""
    return f"{state.at}, {moment(state.at_ms)}{note}"
