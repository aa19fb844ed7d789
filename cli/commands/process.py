"""`onefold process`: processors in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli import failures, guarantees, metrics
from onefold.operate import logs, pipelines
from onefold.operate.settings import load


def command(
    domains: Annotated[
        list[str] | None, typer.Argument(help="Domains whose events are folded; all of them if none is named.")
    ] = None,
    instance: Annotated[
        str, typer.Option(help="A name that survives a restart; unique among a domain's processors.")
    ] = "1",
) -> None:
    """Fold events, transaction by transaction, until SIGTERM or Ctrl-C: a process a domain. Several instances share
    the partitions; of a pipeline with replicas each instance has all of them.

    Example: onefold process runner --instance 2
    """
    settings = load()
    names = pipelines.checked(domains or pipelines.domains())
    client = settings.usable_client()  # what is wrong with it is reported once, and not by each process
    status = os.environ.get("ONEFOLD_STATUS_FILE")
    if len(names) > 1:
        from onefold.stack import together

        path = Path(status or settings.home / "run" / f"process-{instance}.json")
        together.process(names, instance, path, settings.metrics_port)
        return
    logs.configure(settings.log_format)
    from onefold.processor import service

    pipeline = pipelines.found()[names[0]]
    code = service.run(
        names[0],
        client=client,
        instance=instance,
        status_file=Path(status) if status else None,
        step=failures.of_processor(settings),
        schema_registry_url=settings.schema_registry_url,
        replicas=settings.replicas_of(pipeline),
        decision_logs=pipeline.decision_logs,
        decisions_kept_s=pipeline.decisions_kept_s,
        decided_tables=pipeline.decided_tables,
        guarantee=guarantees.of_processor(settings, pipeline),
        telemetry=metrics.of("processor", names, settings),
    )
    raise typer.Exit(code)
