"""`onefold process`: one processor in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from console import failpoint, logs, pipelines
from console.settings import load


def command(
    domain: Annotated[str, typer.Argument(help="The domain whose events are folded.")],
    instance: Annotated[
        str, typer.Option(help="A name that survives a restart; unique among a domain's processors.")
    ] = "1",
) -> None:
    """Fold a domain's events, transaction by transaction, until SIGTERM or Ctrl-C. Several instances share the
    partitions.

    Example: onefold process runner --instance 2
    """
    settings = load()
    (name,) = pipelines.checked([domain])
    logs.configure(settings.log_format)
    from processor import service

    status = os.environ.get("ONEFOLD_STATUS_FILE")
    code = service.run(
        name,
        client=settings.client(),
        instance=instance,
        status_file=Path(status) if status else None,
        step=failpoint.from_environment(),
        schema_registry_url=settings.schema_registry_url,
    )
    raise typer.Exit(code)
