"""`onefold down`: stops the embedded stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from onefold.cli import asking
from onefold.config.settings import PREFIX, Settings, load
from onefold.stack import control, data_directory


def command(
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Also remove the stack's data from the data directory, after a question.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --wipe.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Stop all services that `onefold up` started, in reverse order. Without --wipe the data stays.

    --wipe removes only a stack's files from the data directory, and follows no link.

    Example: onefold down --wipe
    """
    settings = load()
    elsewhere = list(_elsewhere(settings)) if wipe else []
    if wipe:
        data_directory.refuse_foreign(settings.home)
        if data_directory.is_ours(settings.home):
            *many, last = data_directory.contents(settings.home) or ["the empty folders"]
            what = f"{', '.join(many)} and {last}" if many else last
            asking.confirm(
                "; ".join([f"`onefold down --wipe` removes from {settings.home}: {what}", *elsewhere]), yes, as_json
            )
    stopped, stays = control.down(settings, wipe)
    stays += elsewhere
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "wiped": wipe, "stays": stays}))
        return
    typer.echo("The stack is stopped." if stopped else "The stack was not running.")
    if wipe:
        typer.echo("\n".join(["Its data is removed.", *(f"{sentence}." for sentence in stays)]))
    else:
        typer.echo(f"Its data stays in {settings.home}.")


def _elsewhere(settings: Settings) -> Iterator[str]:
    """A sentence, without the full stop, for each place of data that the user has set and that a wipe keeps. A wipe removes the
    data only in the places that the stack uses by default.
    """
    home, running = settings.home, settings.running
    of_the_stack = {
        "bootstrap_servers": running.get("bootstrap_servers") if "kafka" in running.get("services", {}) else None,
        "postgres_dsn": running.get("postgres_dsn") if "postgres" in running.get("services", {}) else None,
        "objects": (home / "objects").as_uri(),
        "state_home": home / "states",
        "judge_home": home / "judge",
    }
    set_by_user = {
        "bootstrap_servers": "topics in the Kafka",
        "postgres_dsn": "tables in the PostgreSQL",
        "objects": "objects in the store",
        "state_home": "states in the folder",
        "judge_home": "checkpoints of `verify`, in the folder",
    }
    for name, place in set_by_user.items():
        found = getattr(settings, name)
        if found and str(found).rstrip("/") != str(of_the_stack[name]):
            yield f"{place} of {PREFIX}{name.upper()} stay"
