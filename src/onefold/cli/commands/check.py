"""`onefold check`: mistakes in pipelines, and problems of servers, before a start."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import OK, USAGE
from onefold.operate import pipelines

if TYPE_CHECKING:
    from onefold.operate.servers import ServerCheck


def command(
    names: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    servers: Annotated[
        bool, typer.Option("--servers", help="Ask Kafka and PostgreSQL as well; nothing is changed there.")
    ] = False,
    service: Annotated[
        list[str] | None,
        typer.Option(
            help="With --servers: the service that has these logins, as sink. Each right that it lacks is a mistake. Repeatable."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the mistakes as JSON.")] = False,
) -> None:
    """Check a pipeline's declaration, handler, schemas, SQL files and verification model. No server has to run, except with
    --servers.

    Exit code 0: no mistake. 2: mistakes, one sentence each, or a server that cannot be used. 3: a server refuses the login, the
    login lacks rights, or a service refuses to start with what is there. 69: a server does not answer.

    Example: onefold check runner --servers --service sink
    """
    from onefold.operate.check import check_all

    chosen = pipelines.checked(names) if names else None
    findings = {name: found for name, found in check_all(pipelines.found()).items() if chosen is None or name in chosen}
    wrong = any(findings.values())
    if not as_json:
        typer.echo("\n".join(_lines(findings)))  # first, because a missing server address raises an error
    asked = _asked(list(chosen or pipelines.domains()), service or []) if servers else None
    if as_json:
        said = {name: value for name, value in asdict(asked).items() if name != "exit_code"} if asked else {}
        typer.echo(json.dumps({**findings, "servers": said} if servers else findings, indent=1))
    elif asked:
        typer.echo("\n".join([*asked.servers, *(f"wrong: {sentence}" for sentence in asked.wrong), *asked.notes]))
    raise typer.Exit(USAGE if wrong else asked.exit_code if asked else OK)


def _asked(names: list[str], services: list[str]) -> ServerCheck:
    """Check the servers. Raises UserError (exit code 2) for an unknown service."""
    from onefold.config.settings import load
    from onefold.operate import servers
    from onefold.operate.acls import KafkaService

    known = [service.value for service in KafkaService]
    if unknown := [word for word in services if word not in known]:
        raise UserError(
            Code.ARGUMENT_WRONG, f"--service is {unknown[0]!r}", f"Services are: {', '.join(known)}.", USAGE
        )
    return servers.check(load(), names, services=[KafkaService(word) for word in services])


def _lines(findings: dict[str, list[str]]) -> list[str]:
    lines = list(findings.get("", []))
    for name, found in findings.items():
        if name:
            lines += [f"{name}: {sentence}" for sentence in found] or [f"{name}: nothing is wrong"]
    return lines
