"""`onefold process`: processors in the foreground."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli import failures, guarantees, logins, metrics
from onefold.config import logs
from onefold.config.settings import INSTANCES_MAX, Settings, load
from onefold.operate import pipelines
from onefold.stack import cores


def command(
    domains: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            help="A name that survives a restart; unique among the pipeline's processors. Default: the host's name."
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=0,
            max=INSTANCES_MAX,
            help="Processes of each pipeline. 0: ONEFOLD_PROCESSOR_INSTANCES, or the cores divided by the pipelines.",
        ),
    ] = 0,
) -> None:
    """Run the processors of pipelines until SIGTERM or Ctrl-C: a process for each core, or for each pipeline where there are
    more pipelines than cores. Processes and instances share the partitions. An instance of a pipeline with replicas is one
    process, which processes every partition.

    Example: onefold process runner --instance 2
    """
    settings = load()
    instance = instance or socket.gethostname()
    names = pipelines.checked(domains or pipelines.domains())
    client = settings.usable_client()  # reports unusable settings once, and not in each process
    each = processes or settings.processor_instances or cores.processes(len(names))
    wanted = {name: _processes(name, each, settings, client) for name in names}
    status = os.environ.get("ONEFOLD_STATUS_FILE")
    logs.configure(settings.log_format)
    if sum(wanted.values()) > 1:
        from onefold.stack import foreground

        which = f"{names[0]}-{instance}" if len(names) == 1 else instance
        path = Path(status or settings.home / "run" / f"process-{which}.json")
        raise typer.Exit(foreground.process(wanted, instance, path, settings.metrics_port))
    from onefold.processor import service
    from onefold.processor.tasks import StateSettings

    logins.follow(settings)
    pipeline = pipelines.found()[names[0]]
    code = service.run(
        names[0],
        client=client,
        instance=instance,
        status_file=Path(status) if status else None,
        session_timeout_ms=settings.session_timeout_ms(),
        step=failures.of_processor(settings),
        schema_registry_url=settings.schema_registry_url,
        replicas=settings.replicas_of(pipeline),
        decisions_kept_s=pipeline.decisions_kept_s,
        replication=settings.replication(),
        states=StateSettings(settings.state, settings.states(), settings.state_memory_mb << 20),
        guarantee=guarantees.of_processor(settings, pipeline),
        telemetry=metrics.of("processor", names, settings),
    )
    raise typer.Exit(code)


def _processes(name: str, each: int, settings: Settings, client: dict[str, str]) -> int:
    """The number of processes of a pipeline: at most the number of tasks, because a process without a task is useless. For a
    broken pipeline 1: the processor reports the error.
    """
    if each == 1 or settings.replicas_of(pipelines.found()[name]) > 1:
        return 1
    from onefold.processor import loading
    from onefold.processor.core.errors import ProcessorError, Retriable
    from onefold.processor.io import admin

    try:
        return min(each, admin.partitions_of(admin.connect(client), loading.topology_of(name)))
    except Retriable:  # Kafka or the topics are not ready
        return min(each, settings.partitions)
    except ProcessorError:
        return 1
