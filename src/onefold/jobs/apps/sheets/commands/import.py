"""`onefold sheets import`: import a CSV file as a single entry of a sheet's log, by the three calls of an upload."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Annotated, TextIO

import typer

from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate.progress import StageProgress

# The number of lines between two progress messages.
_SAY_EVERY = 10_000


def command(
    sheet: Annotated[str, typer.Argument(help="The sheet's id; a sheet that is not there begins with this.")],
    file: Annotated[Path, typer.Argument(help="A CSV file in UTF-8; its first field is A1.")],
    request: Annotated[
        str | None,
        typer.Option(
            help="Your name for this import: again under the same one is the same import. Else the file decides."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Import a CSV file: numbers, formulas that begin with =, and texts. An empty field leaves its cell unchanged.

    Idempotent: run it again after any error.

    Example: onefold sheets import budget budget.csv
    """
    from onefold.jobs.apps.sheets import tables, uploads
    from onefold.jobs.objects import open_store

    settings, progress, digest = load(), StageProgress(), hashlib.sha256()
    store = open_store(settings.object_store(), settings.objects_endpoint)
    try:
        # The payload is a file on disk, because its size may exceed memory and `import_payload` reads the payload twice.
        with _opened(file) as table, tempfile.TemporaryFile() as payload:
            for number, line in enumerate(tables.payload_lines(table), 1):
                digest.update(line)
                payload.write(line)
                if number % _SAY_EVERY == 0:
                    progress.say(f"cells: {number:,}")
            named = request if request is not None else f"{file.name} {digest.hexdigest()}"
            produce = uploads.to_kafka(settings.usable_client())
            made = uploads.import_payload(store, produce, sheet, named, payload)
    except tables.NotATable as error:
        raise UserError(Code.UPLOAD_WRONG, f"{file} cannot be imported: {error}", exit_code=USAGE) from None
    finally:
        progress.clear()
    done = {"sheet": sheet, "object": made.object_id, "cells": made.cells, "size": made.size, "request": named}
    if as_json:
        typer.echo(json.dumps(done, ensure_ascii=False))
        return
    typer.echo(f"{made.cells:,} cells of {file} are on their way into sheet {sheet}, as one entry: {made.object_id}")


def _opened(file: Path) -> TextIO:
    try:
        return file.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise UserError(Code.FILE_UNUSABLE, f"{file} cannot be read: {error.strerror}", exit_code=USAGE) from None
