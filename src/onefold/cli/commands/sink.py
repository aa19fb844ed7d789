"""`onefold sink`: the Spark sink in the foreground."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli import failures, guarantees, logins, metrics
from onefold.config import logs, private_files
from onefold.config.guarantee import UNKNOWN_CONTRACTS
from onefold.config.settings import Settings, load
from onefold.operate import pipelines
from onefold.operate.progress import Progress
from onefold.stack import jars, java


def command(
    domains: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            help="A name for the ledger and the logs; two sinks at once need two names. Default: the host's name."
        ),
    ] = None,
    submitted: Annotated[bool, typer.Option(hidden=True, help="Run in the driver of spark-submit.")] = False,
) -> None:
    """Run the Spark sink until SIGTERM or Ctrl-C. It writes the output topics to PostgreSQL, each batch with its offsets in
    one transaction.

    Example: onefold sink runner campaigns
    """
    settings = load()
    instance = instance or socket.gethostname()
    names = pipelines.checked(domains or pipelines.domains())
    chosen = [pipelines.found()[name] for name in names]
    logs.configure(settings.log_format)
    archives, java_home = ([], "") if submitted else _programs(settings)
    private_files.folder(settings.home / "checkpoints")
    from onefold.operate import grants
    from onefold.rights import Role
    from onefold.spark_sink import service
    from onefold.spark_sink.plan import Logins
    from onefold.spark_sink.spark.options import SparkSettings

    status = os.environ.get("ONEFOLD_STATUS_FILE")
    step, map_fails = failures.of_sink(settings)
    logins.follow(settings)
    first = Logins(settings.librdkafka, settings.postgres())
    code = service.run(
        chosen,
        bootstrap_servers=settings.kafka(),
        kafka_options=first.kafka_options,
        spark_kafka=settings.spark_kafka,
        postgres_dsn=first.postgres_dsn,
        writer=f"sink-{instance}",
        jars=archives,
        java_home=java_home,
        checkpoint_root=settings.home / "checkpoints" / f"sink-{instance}",
        status_file=Path(status) if status else None,
        step=step,
        map_fails=map_fails,
        guarantee=guarantees.of_sink(settings, chosen),
        unknown_contracts=UNKNOWN_CONTRACTS in settings.allowed(),
        lacks=lambda name: grants.lacking(
            Role.SINK, logins.now(first).postgres_dsn, [pipelines.found()[name]], "onefold sink"
        ),
        logins=lambda: logins.now(first),
        interval_s=settings.sink_interval_s,
        spark=SparkSettings(settings.spark_master, settings.spark_options, submitted),
        telemetry=metrics.of("sink", names, settings),
    )
    raise typer.Exit(code)


def _programs(settings: Settings) -> tuple[list[Path], str]:
    """The Kafka connector's jars, and the home of the Java that runs Spark."""
    progress = Progress()
    found = java.locate(settings.cache)
    archives = jars.ensure(
        "spark",
        settings.cache,
        found.executable,
        lambda done, total: progress.say(f"fetching Spark's jars: {done} of {total}"),
    )
    progress.clear()
    return archives, str(found.spark_home)
