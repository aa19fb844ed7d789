"""`onefold work`: the workers of pipelines that have jobs, in the foreground."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.cli import logins, metrics
from onefold.config import logs
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines

if TYPE_CHECKING:
    from onefold.jobs.context import Context
    from onefold.pipelines import Pipeline


def command(
    domains: Annotated[
        list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all that have jobs.")
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            help="A name that survives a restart; unique among the pipeline's workers. Default: the host's name."
        ),
    ] = None,
) -> None:
    """Run the workers of pipelines with jobs (a mail for each order, say) until SIGTERM or Ctrl-C: a process for each pipeline.
    Several instances share the queues. A worker that stops hands its job over.

    Example: onefold work orders --instance 2
    """
    settings = load()
    instance = instance or socket.gethostname()
    known = pipelines.found()
    names = pipelines.checked(domains or [name for name in pipelines.domains() if known[name].jobs])
    without = [name for name in names if not known[name].jobs]
    if without:
        raise UserError(
            Code.NO_JOBS,
            f"{without[0]} has no jobs",
            f"Declare some in {known[without[0]].declared_in}: `onefold docs jobs`.",
            USAGE,
        )
    client = settings.usable_client()  # reports unusable settings once, and not in each process
    status = os.environ.get("ONEFOLD_STATUS_FILE")
    logs.configure(settings.log_format)
    if len(names) != 1:
        from onefold.stack import foreground

        path = Path(status or settings.home / "run" / f"work-{instance}.json")
        foreground.work(names, instance, path, settings.metrics_port)
        return
    from onefold.jobs import service
    from onefold.jobs.worker import Limits

    logins.follow(settings)
    pipeline = known[names[0]]
    code = service.run(
        pipeline,
        context_of(pipeline, settings, client),
        instance=instance,
        prepare=lambda: prepare(settings.postgres(), pipeline),
        status_file=Path(status) if status else None,
        session_timeout_ms=settings.session_timeout_ms(),
        limits=Limits(timeout_s=settings.job_timeout_s),
        replication=settings.replication(),
        telemetry=metrics.of("worker", names, settings),
    )
    raise typer.Exit(code)


def prepare(dsn: str, pipeline: Pipeline) -> None:
    """Create missing tables of the engine, as a sink does, and check the rights of a worker.

    Raises:
        Refused: a newer Onefold has changed the tables, or the worker lacks a right.
        Misconfigured: the database cannot be used.
        psycopg.Error: the database does not answer.
    """
    from onefold.operate import grants
    from onefold.postgres import NoConnect, Unfit
    from onefold.processor.core.errors import Misconfigured, Refused
    from onefold.rights import DatabaseRole
    from onefold.spark_sink.contracts import ENGINE_SQL
    from onefold.spark_sink.postgres.schema import ENGINE, migrate

    try:
        if not (lacks := grants.lacking(DatabaseRole.WORKER, dsn, [pipeline], "onefold work")):
            migrate(dsn, ENGINE, ENGINE_SQL)
    except NoConnect as error:
        raise Refused(error.code, str(error)) from error
    except Unfit as error:
        raise Misconfigured(error.code, str(error)) from error
    if lacks:
        raise Refused(Code.POSTGRES_RIGHT, lacks)


def context_of(pipeline: Pipeline, settings: Settings, client: dict[str, str]) -> Context:
    """The context of a pipeline's jobs: database, Kafka client, object store, data directory."""
    from onefold.jobs.context import Context
    from onefold.jobs.objects import open_store

    return Context(
        pipeline.name,
        settings.postgres(),
        client,
        lambda: open_store(settings.object_store(), settings.objects_endpoint),
        settings.home,
    )
