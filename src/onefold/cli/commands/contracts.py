"""`onefold contracts`: the schema versions of a pipeline's output topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.config.settings import load
from onefold.operate import pipelines
from onefold.operate.progress import StageProgress

if TYPE_CHECKING:
    from onefold.operate.schema_versions import SchemaVersion


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    restore: Annotated[
        bool, typer.Option("--restore", help="Write versions that only PostgreSQL has into avro/earlier/.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Show the schemas of a pipeline's output topics: today's, earlier versions, and versions that a sink has written and that
    avro/ does not have. A sink refuses to start while avro/ lacks such a version.

    Example: onefold contracts runner
    """
    from onefold.operate import schema_versions

    (name,) = pipelines.checked([domain])
    found = schema_versions.versions(name, load())
    written = schema_versions.restore(name, found) if restore else []
    if as_json:
        listed = [version.as_data() for version in found]
        typer.echo(json.dumps({"contracts": listed, "restored": [str(path) for path in written]}, indent=1))
        return
    typer.echo("\n".join(map(_line, found)))
    for path in written:
        StageProgress().done(f"wrote {path}")


def _line(version: SchemaVersion) -> str:
    line = f"{version.topic}  {version.fingerprint}  {version.contract}, {version.standing}"
    return f"{line}\n  its records cannot be read any more: {'; '.join(version.lost)}" if version.lost else line
