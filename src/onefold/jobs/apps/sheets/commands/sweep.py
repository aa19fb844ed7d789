"""`onefold sheets sweep`: find unreferenced uploads, and request their discard from the log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.exit_codes import FAILED, OK
from onefold.operate.progress import StageProgress
from onefold.operate.times import duration

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# The number of listed objects. The total covers the rest.
SHOWN = 20


def command(
    older_than: Annotated[
        str, typer.Option("--older-than", help="How long a client has to reference an upload: 90s, 30m, 12h, 1d.")
    ] = "1d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what the command would do. Exit code 1: there is something.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Find uploads that no record references after a time, and queue the uploads for deletion.

    The log decides: an upload with a reference stays, and the worker deletes every upload without a reference. The command also
    removes unfinished files of crashed writers.

    Example: onefold sheets sweep --older-than 12h --dry-run
    """
    from onefold.jobs.apps.sheets import uploads  # imports clients, unnecessary for `--help`
    from onefold.jobs.objects import open_store

    patience_s, settings, progress = duration(older_than).total_seconds(), load(), StageProgress()
    store = open_store(settings.object_store(), settings.objects_endpoint)
    found = []
    for one in uploads.unnamed(store, patience_s):
        found.append(one)
        progress.say(f"objects found: {len(found):,}")
    progress.clear()
    asked = cleared = 0
    if not dry_run:
        if found:
            uploads.ask(uploads.to_kafka(settings.usable_client()), found)
        asked, cleared = len(found), store.clear(patience_s)
    size = sum(one.size for one in found)
    if as_json:
        listed = [{"object": one.name, "since": one.since.isoformat(), "size": one.size} for one in found]
        typer.echo(json.dumps({"found": listed, "size": size, "asked": asked, "unfinished_cleared": cleared}))
    else:
        for one in found[:SHOWN]:
            typer.echo(f"{one.name}  {one.size:,} bytes, for {_words((datetime.now(UTC) - one.since).total_seconds())}")
        if len(found) > SHOWN:
            typer.echo(f"... and {len(found) - SHOWN:,} more")
        typer.echo(f"{len(found):,} objects of {size:,} bytes that nothing has named for {older_than}.")
        if asked:
            typer.echo("The log was asked to discard them: the worker deletes what no entry names.")
        if cleared:
            typer.echo(f"{cleared:,} unfinished writes cleared away.")
    raise typer.Exit(FAILED if dry_run and found else OK)


def _words(age_s: float) -> str:
    unit = next((unit for unit in "dhm" if age_s >= _UNITS_S[unit]), "s")
    return f"{int(age_s // _UNITS_S[unit])} {unit}"
