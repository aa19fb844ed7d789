"""`onefold new`: a small working project for a new pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli import starter


def command(
    name: Annotated[str, typer.Argument(help="The pipeline's name, as orders: small letters, digits and _.")],
    into: Annotated[
        Path | None,
        typer.Option(help="The folder to write into, made if it is missing; the working folder if not given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the files that were written as JSON.")] = False,
) -> None:
    """Create a small working project: schemas, a handler, a table and its merge, a verification model, a test, a CI file.

    The folder must be empty, except for files that begin with a dot. `new` never overwrites a file.

    Example: onefold new orders --into shop
    """
    folder = (into or Path()).absolute()
    files = starter.write(name, folder)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "files": files}))
        return
    typer.echo("\n".join([f"The pipeline {name} is in {folder}:", *(f"  {file}" for file in files)]))
    typer.echo("Try it with `pytest`, then `onefold up`; its README.md explains the files.")
