"""`onefold state diff`: what differs between two moments of a key's state."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from onefold import exit_codes
from onefold.operate.progress import Progress
from onefold.operate.settings import load
from onefold.operate.values import printable


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as campaigns.")],
    key: Annotated[str, typer.Argument(help="The state's key, as the topology names it.")],
    before: Annotated[str, typer.Argument(metavar="FROM", help="An offset of the changelog, PARTITION:OFFSET.")],
    after: Annotated[str, typer.Argument(metavar="TO", help="The other one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare the states of a key at two offsets of the changelog, field by field.

    Exit code 1: the changelog has no state at one of the offsets.

    Example: onefold state diff campaigns 1 0:1200 0:1300
    """
    from onefold.cli.commands.state import common  # with Kafka's client, which `--help` does not need
    from onefold.operate import states

    progress = Progress()
    try:
        found = states.diff(
            load(),
            domain,
            key,
            before,
            after,
            lambda what, records: progress.say(f"reading {what}: {records:,} records"),
        )
    finally:
        progress.clear()
    if as_json:
        data = {"before": vars(found.before), "after": vars(found.after), "fields": found.fields}
        typer.echo(json.dumps(data, indent=1))
    else:
        typer.echo(f"from  {common.heading(found.before)}")
        typer.echo(f"to    {common.heading(found.after)}")
        typer.echo("\n".join(map(_line, found.fields.items())) or "nothing differs")
    known = found.before.at is not None and found.after.at is not None
    raise typer.Exit(exit_codes.OK if known else exit_codes.FAILED)


def _line(field: tuple[str, tuple[Any, Any]]) -> str:
    name, (before, after) = field
    return printable(f"{name or 'the state'}: {_value(before)} -> {_value(after)}")


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
