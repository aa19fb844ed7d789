"""`onefold replay`: the name of `onefold rebuild --since` in earlier releases."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold.cli.commands import rebuild


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    since: Annotated[str, typer.Option("--from", help="As --since of `onefold rebuild`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="As of `onefold rebuild`.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As of `onefold rebuild`.")] = False,
) -> None:
    """Run `onefold rebuild --since`. The next release does not have this name.

    Example: onefold replay runner --from 2h
    """
    typer.echo("`onefold replay --from` is `onefold rebuild --since` now, and goes with the next release", err=True)
    rebuild.command(domain, since, dry_run, as_json)
