"""`onefold acls`: the rights of each service in Kafka."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.pipelines import InvalidDeclaration

if TYPE_CHECKING:
    from onefold.operate.acls import KafkaService


class Format(StrEnum):
    """The output format."""

    KAFKA_ACLS = "kafka-acls"
    STRIMZI = "strimzi"


def command(
    domains: Annotated[list[str] | None, typer.Argument(metavar="PIPELINE", help="Pipelines. Default: all.")] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Commands of Kafka's tool, or KafkaUsers.")
    ] = Format.KAFKA_ACLS,
    user: Annotated[
        list[str] | None, typer.Option(metavar="SERVICE=PRINCIPAL", help="The user of a service. Repeatable.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="The beginning of all other users; the service follows.")] = "onefold-",
    servers: Annotated[
        str | None, typer.Option(help="The bootstrap servers in the commands. Default: Kafka's.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="The name of Strimzi's Kafka resource.")] = "kafka",
    as_json: Annotated[bool, typer.Option("--json", help="Print the ACLs as JSON.")] = False,
) -> None:
    """Print the ACLs that give each service the least rights in Kafka: of processor, sink, worker, verifier, auditor, reader
    (dashboard, status), producer and operator (migrate, reset, pause, rebuild, replay). Run the output as Kafka's administrator.

    Example: onefold acls orders --user sink=orders-sink --servers kafka-1:9093
    """
    from onefold.operate import acls

    settings = load()
    known = pipelines.found()
    chosen = [known[name] for name in pipelines.checked(domains or pipelines.domains())]
    principals = {service: f"{prefix}{service.value}" for service in acls.KafkaService} | _named(user or [])
    try:
        granted = {
            service: acls.acls_of(service, chosen, lambda pipeline: settings.replicas_of(pipeline) > 1)
            for service in acls.KafkaService
        }
    except InvalidDeclaration as fault:
        raise UserError(Code.PIPELINE_WRONG, str(fault), exit_code=USAGE) from None
    granted = {service: found for service, found in granted.items() if found}
    if as_json:
        found = {
            service.value: {"principal": principals[service], "acls": [acl._asdict() for acl in of]}
            for service, of in granted.items()
        }
        typer.echo(json.dumps(found, indent=1))
    elif form is Format.STRIMZI:
        typer.echo("\n".join(acls.strimzi(granted, principals, cluster)))
    else:
        typer.echo("\n".join(acls.kafka_acls(granted, principals, servers or settings.kafka())))


def _named(words: list[str]) -> dict[KafkaService, str]:
    """The principals by service, from words SERVICE=PRINCIPAL. Raises UserError (exit code 2) for an unknown service."""
    from onefold.operate.acls import KafkaService

    found = {}
    for word in words:
        name, _, principal = word.partition("=")
        if not principal or name not in [service.value for service in KafkaService]:
            raise UserError(
                Code.ARGUMENT_WRONG,
                f"--user is {word!r}, and not SERVICE=PRINCIPAL",
                f"Services are: {', '.join(service.value for service in KafkaService)}.",
                USAGE,
            )
        found[KafkaService(name)] = principal.removeprefix("User:")
    return found
