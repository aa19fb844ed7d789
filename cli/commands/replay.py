"""`onefold replay`: the past of a pipeline, landed again, and what differs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from onefold.cli.commands.rebuild import replaced
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import dead_letters
from onefold.operate.errors import UserError
from onefold.operate.settings import load


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    since: Annotated[
        str, typer.Option("--from", help="Since when: 2026-11-23T12:00, in UTC, or 90s, 15m, 2h, 3d ago.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show differences. Exit code 1: there are some.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was changed as JSON.")] = False,
) -> None:
    """Recompute the rows that records since a time have changed, in a temporary database, compare them with the live tables,
    and apply differences and offsets in one transaction. `replay` writes to no topic. Readers see the old rows until it
    commits. Processors and sinks may run.

    Example: onefold replay runner --from 2h --dry-run
    """
    from onefold.operate.rebuild import Rebuild

    now = datetime.now(UTC)
    at_ms = dead_letters.time_ms(since, now)
    if at_ms > now.timestamp() * 1000:
        raise UserError(Code.ARGUMENT_WRONG, f"{since} is still to come", "Write a time that has passed.", USAGE)
    settings = load()
    replaced(Rebuild(domain, settings, at_ms), settings, dry_run, as_json)
