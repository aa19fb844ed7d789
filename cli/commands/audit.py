"""`onefold audit`: the judge, live."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from onefold.cli import metrics
from onefold.operate import logs, pipelines
from onefold.operate.settings import load


def command(
    domain: Annotated[str, typer.Argument(help="The domain to follow, as runner.")],
    once: Annotated[
        bool, typer.Option("--once", help="End when every row was looked at once, with a verdict's exit code.")
    ] = False,
    until_found: Annotated[
        bool, typer.Option("--until-found", help="End at the first divergence, with exit code 1.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="With --once: seconds until it cannot be told.")] = 60.0,
) -> None:
    """Follow a domain live, until SIGTERM or Ctrl-C: compare each output record and each row with a model of its own, seconds
    after they were committed. Nothing has to drain for it. What it finds it prints, and goes on: /healthz stays red.

    Exit code 0: nothing was found. 1: something was. 2: this pipeline is not audited, or, with --once, it cannot be told.

    Example: onefold audit runner --until-found
    """
    settings = load()
    (name,) = pipelines.checked([domain])
    settings.usable_client()
    settings.postgres()  # raises when there is none
    from onefold.operate import auditing  # imports clients of Postgres and Kafka, which `--help` does not need

    auditing.checked(settings, name)
    logs.configure(settings.log_format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    told = metrics.of("auditor", [name], settings)
    raise typer.Exit(auditing.audit(settings, name, told, stop, once=once, until_found=until_found, timeout_s=timeout))
