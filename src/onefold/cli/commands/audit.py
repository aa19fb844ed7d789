"""`onefold audit`: the continuous verifier."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli import metrics
from onefold.config import logs
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import UNKNOWN, USAGE
from onefold.operate import pipelines
from onefold.process import ServiceProcess


def command(
    domain: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE", help="The pipeline, as runner. Default: those of ONEFOLD_AUDITED, a process each."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End after one comparison of every row, with the verdict's exit code.")
    ] = False,
    until_found: Annotated[
        bool, typer.Option("--until-found", help="End at the first mismatch, with exit code 1.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="With --once: seconds before the verdict is unknown.")] = 60.0,
) -> None:
    """Verify a pipeline while it runs, until SIGTERM or Ctrl-C: compare each output record and each row with the pipeline's
    model, seconds after the commit. The pipeline need not drain. `audit` logs each mismatch and goes on; /healthz then
    returns 503.

    Exit code 0: no mismatch. 1: a mismatch. 2: `audit` cannot verify this pipeline, or a server does not answer; with --once
    also: the time ran out.

    Example: onefold audit runner --until-found
    """
    settings = load()
    if domain:
        pipelines.checked([domain])
    try:
        settings.usable_client()
        settings.postgres()  # raises UserError without a database
    except UserError as error:
        raise UserError(error.code, error.message, error.hint, UNKNOWN) from None  # not 1, the exit code for a mismatch
    from onefold.operate import auditing  # imports the clients of PostgreSQL and Kafka, which `--help` does not need

    status = os.environ.get("ONEFOLD_STATUS_FILE")
    logs.configure(settings.log_format)
    if not domain:
        path = Path(status or settings.home / "run" / "audit.json")
        raise typer.Exit(_all(settings, path, alone=once or until_found))
    name = domain
    auditing.checked(name)
    told = metrics.of("auditor", [name], settings)
    with ServiceProcess(Path(status) if status else None) as process:
        process.exit_code = auditing.audit(
            settings, name, told, process, once=once, until_found=until_found, timeout_s=timeout
        )
    raise typer.Exit(process.exit_code)


def _all(settings: Settings, path: Path, *, alone: bool) -> int:
    """Verify the pipelines of ONEFOLD_AUDITED, each in a process, until SIGTERM or Ctrl-C. Returns the exit code."""
    from onefold.operate import auditing
    from onefold.stack import foreground

    if alone:
        raise UserError(
            Code.ARGUMENT_WRONG,
            "--once and --until-found need the name of one pipeline",
            "Give it, as in `onefold audit runner`.",
            USAGE,
        )
    names = auditing.audited(settings, pipelines.domains())
    if not names:
        raise UserError(Code.ARGUMENT_WRONG, "no pipeline is audited", "Name one, or set ONEFOLD_AUDITED.", USAGE)
    return foreground.audit(names, path, settings.metrics_port)
