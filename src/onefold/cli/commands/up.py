"""`onefold up`: the embedded stack in the background."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from onefold.cli import extras
from onefold.config import redaction
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.operate.progress import StageProgress
from onefold.stack import control


def command(
    only: Annotated[str, typer.Option(help="Start only these: kafka, postgres, or both with a comma.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print how to connect as JSON.")] = False,
    show_password: Annotated[bool, typer.Option("--show-password", help="Print the database's password too.")] = False,
) -> None:
    """Start Kafka, PostgreSQL, the processors, the Spark sink and the dashboard in the background, and return when all
    are ready.

    The first start downloads jars, and creates topics and tables. Later starts reuse the data.

    Example: onefold up
    """
    settings = load()
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in control.INFRASTRUCTURE]
    if unknown:
        raise UserError(
            Code.ARGUMENT_WRONG,
            f"--only knows {' and '.join(control.INFRASTRUCTURE)}, not {unknown[0]}",
            exit_code=USAGE,
        )
    extras.require("up", *extras.NEEDS["up"])
    progress = StageProgress()
    domains = [] if wanted else _sound()
    if domains and settings.to_audit():
        from onefold.operate import auditing  # imports the verifier, which a stack without auditors does not need

        auditing.audited(settings, domains)  # reports a wrong name before the start
    state, started = control.up(settings, domains, wanted, progress)
    progress.clear()
    shown = {name: state.get(name) for name in ("bootstrap_servers", "postgres_dsn", "dashboard")}
    if shown["bootstrap_servers"]:
        shown["bootstrap_servers"] = redaction.address(shown["bootstrap_servers"])
    if shown["postgres_dsn"] and not show_password:
        shown["postgres_dsn"] = redaction.dsn(shown["postgres_dsn"])
    typer.echo(json.dumps({**shown, "started": started}) if as_json else _text(settings, shown, started))


def _sound() -> list[str]:
    """The pipelines without mistakes. Prints the mistakes of all other pipelines, which do not start."""
    from onefold.operate.check import check_all

    findings = check_all(pipelines.found(), not_judged=False)
    declared = findings.pop("")
    for sentence in (*declared, *(f"{name}: {found}" for name, each in findings.items() for found in each)):
        typer.echo(f"left out: {sentence}", err=True)
    sound = [name for name, found in findings.items() if not found]
    if not sound:
        raise UserError(
            Code.PIPELINE_WRONG, "no pipeline can be started", "`onefold check` lists what is wrong with each.", USAGE
        )
    return sound


def _text(settings: Settings, state: dict[str, Any], started: bool) -> str:
    lines = ["The stack is up." if started else "The stack is up already."]
    if state["bootstrap_servers"]:
        lines.append(f"  Kafka       {state['bootstrap_servers']}")
    if state["postgres_dsn"]:
        lines.append(f"  PostgreSQL  {state['postgres_dsn']}")
    if state.get("dashboard"):
        lines.append(f"  dashboard   {state['dashboard']}")
    lines.append(f"  logs        {settings.home / 'logs'}")
    lines.append("Inspect it with `onefold status` and `onefold sql`; stop it with `onefold down`.")
    lines.append("A client of your own needs the database's password: `onefold status --show-password`.")
    return "\n".join(lines)
