"""`onefold prepare`: topics and tables."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.operate import pipelines
from onefold.operate.settings import load


def command(
    domains: Annotated[list[str] | None, typer.Argument(help="Domains; all of them if none is named.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Make the topics and tables that are missing. `onefold up` does this by itself; servers of your own need it once.

    Example: ONEFOLD_BOOTSTRAP_SERVERS=kafka:9092 ONEFOLD_POSTGRES_DSN=postgresql://me@db/events onefold prepare
    """
    settings = load()
    names = pipelines.checked(domains or pipelines.domains())
    topics = pipelines.create_topics(names, settings)
    files = pipelines.migrate(names, settings)
    if as_json:
        typer.echo(json.dumps({"topics": topics, "schema_files": files}))
        return
    typer.echo(f"topics made: {', '.join(topics) or 'none, all were there'}")
    typer.echo(f"schema files applied: {', '.join(files) or 'none, all were applied'}")
