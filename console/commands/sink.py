"""`onefold sink`: the Spark sink in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from console import failpoint, injection, logs, pipelines
from console.embedded import jars, java, private
from console.progress import Progress
from console.settings import load


def command(
    domains: Annotated[list[str] | None, typer.Argument(help="Domains to land; all of them if none is named.")] = None,
    instance: Annotated[
        str, typer.Option(help="A name for the ledger and the logs; two sinks at once need two names.")
    ] = "1",
) -> None:
    """Land the output topics in PostgreSQL with Spark, each batch with its offsets in one transaction, until SIGTERM
    or Ctrl-C.

    Example: onefold sink runner campaigns
    """
    settings = load()
    names = pipelines.checked(domains or pipelines.domains())
    logs.configure(settings.log_format)
    progress = Progress()
    found = java.locate(settings.cache)
    spark = jars.ensure(
        "spark",
        settings.cache,
        found.executable,
        lambda done, total: progress.say(f"fetching Spark's jars: {done} of {total}"),
    )
    progress.clear()
    private.folder(settings.home / "checkpoints")
    from spark_sink import service

    status = os.environ.get("ONEFOLD_STATUS_FILE")
    code = service.run(
        names,
        bootstrap_servers=settings.kafka(),
        kafka_options=settings.kafka_options,
        postgres_dsn=settings.postgres(),
        writer=f"sink-{instance}",
        jars=spark,
        java_home=str(found.spark_home),
        checkpoint_root=settings.home / "checkpoints" / f"sink-{instance}",
        status_file=Path(status) if status else None,
        step=injection.Dice("reduce", settings.fail_reduce_pct, settings).at(
            "sink.before_commit", failpoint.from_environment()
        ),
        map_fails=injection.Dice("map", settings.fail_map_pct, settings).fails,
    )
    raise typer.Exit(code)
