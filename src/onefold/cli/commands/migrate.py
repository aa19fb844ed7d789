"""`onefold migrate`: create missing topics and tables."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.operate import pipelines


def command(
    domains: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="Exit with 0 although topics or tables of a pipeline cannot be created."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Create missing topics and tables, and give the roles that `onefold grants` has created their rights on the tables.
    `onefold up` does so too; on your own servers run `migrate` once. A failure of one pipeline does not stop the others.

    Example: ONEFOLD_BOOTSTRAP_SERVERS=kafka:9092 ONEFOLD_POSTGRES_DSN=postgresql://me@db/events onefold migrate
    """
    settings = load()
    names = pipelines.checked(domains or pipelines.domains())
    topics: list[str] = []
    files = pipelines.migrate_engine(settings)
    failed: list[UserError] = []
    for name in names:
        try:
            topics += pipelines.create_topics([name], settings)
            files += pipelines.migrate([name], settings)
        except UserError as error:
            typer.echo(f"{name}: {error.message}", err=True)
            failed.append(error)
    for thing in pipelines.give_rights(names, settings):
        typer.echo(
            f"no rights were given on {thing}, which another role owns: run `onefold grants` as that role", err=True
        )
    if failed and not keep_going:
        raise UserError(
            failed[0].code,
            f"{len(failed)} of {len(names)} pipelines could not be migrated",
            exit_code=failed[0].exit_code,
        )
    if as_json:
        typer.echo(json.dumps({"topics": topics, "schema_files": files}))
        return
    typer.echo(f"topics made: {', '.join(topics) or 'none, all were there'}")
    typer.echo(f"schema files applied: {', '.join(files) or 'none, all were applied'}")
