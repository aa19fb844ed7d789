"""`onefold status`: what runs, how to connect, how far behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from onefold.cli import live, shown_status
from onefold.config import redaction
from onefold.config.errors import UserError
from onefold.config.guarantee import END_TO_END, judge
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, UNAVAILABLE, USAGE
from onefold.pipelines import find

if TYPE_CHECKING:
    from onefold.kafka_client import Trouble

# What the services are called that fold; stack/plan.py names them.
PROCESSOR = "processor-"
# And the servers, with what they are called by everybody else.
KAFKA, POSTGRES = "Kafka", "PostgreSQL"
SERVERS = {KAFKA: "kafka", POSTGRES: "postgres"}


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    show_password: Annotated[bool, typer.Option("--show-password", help="Print the database's password too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat the display each second, until Ctrl-C.")] = False,
) -> None:
    """Show the services, how to connect, the lag of each pipeline to the database commit (0: drained) with the oldest
    record's age, open transactions that block records, replicas and jobs. Exits with 69 if a server does not answer, with 3 if
    a server refuses the login, the certificate or a right. `onefold ps` is the same.

    Example: onefold status --json
    """
    if watch and as_json:
        raise UserError(
            Code.ARGUMENT_WRONG, "--watch is for people, and --json for programs", "Leave one of them out.", USAGE
        )
    settings = load()
    if watch:
        try:
            live.watch(lambda: _watched(show_password), "onefold status")
        except KeyboardInterrupt:
            return
    found = describe(settings, show_password)
    text = "\n".join(shown_status.lines(settings.home, found))
    typer.echo(json.dumps(found, indent=1) if as_json else text)
    if found["problems"]:
        raise UserError(
            Code.of(found["codes"][0]),
            "; ".join(found["problems"]),
            " ".join([*found["remedies"], "What was printed is what is known without it."]),
            REFUSED if found["refused"] else UNAVAILABLE,
        )


def _watched(show_password: bool) -> Sequence[str]:
    settings = load()  # a stack may have been started or ended since
    # What is guaranteed changes with settings of servers, not each second, and every topic is asked for it.
    return shown_status.watched(settings.home, describe(settings, show_password, guarantee=False))


def describe(settings: Settings, show_password: bool = False, guarantee: bool = True) -> dict[str, Any]:
    """{"running", "bootstrap_servers", "postgres_dsn", "dashboard", "metrics": {service: address}, "services":
    {name: {"state", ...}}, "problems": [sentence] of servers that are set or run and cannot be used, "codes": [their codes],
    "remedies": [sentence] to them, "refused": whether waiting does not help with one of them, "lag": {domain: {...}} as
    `operate.lag` has it, "held": [{...}] as `operate.held` has it, "missing_topics": {domain: [...]}, "partitions":
    {domain: sentence} of those to whose topics some were added, "not_running": [domain], "replicas": {domain:
    {"decisions_a_second", "unpublished", "replicas": {name: {...}}}} of those that have some, "set_aside": {domain:
    {"records", "reason"}} of those that have some, "jobs": {queue: {...}}, "paused": {domain: {"at_ms", "by", "reason", "says"}},
    "guarantee": {"holds", "lines", "findings": [...], "unknown": [...]}, {} where nobody could be asked}.
    The DSN is without its password unless that is asked for, and Kafka's address always; the guarantee is {} too where it is not
    asked for.
    """
    running = settings.running
    servers = settings.bootstrap_servers or running.get("bootstrap_servers")
    dsn = settings.postgres_dsn or running.get("postgres_dsn")
    problems = _problems(settings)
    asked = bool(servers and dsn)
    kafka, postgres = (asked and (name not in problems or problems[name].partial) for name in (KAFKA, POSTGRES))
    lag = _lag(settings, kafka, postgres) if asked else {}
    problems |= _refusals(lag)
    # A refusal decides the exit code, and gives the code of the error.
    problems = dict(sorted(problems.items(), key=lambda named: not named[1].refused))
    return {
        "running": bool(running),
        "bootstrap_servers": redaction.address(servers) if servers else None,
        "postgres_dsn": dsn if show_password or not dsn else redaction.dsn(dsn),
        "dashboard": running.get("dashboard"),
        "metrics": {
            name: f"http://{settings.metrics_host}:{port}" for name, port in running.get("metrics", {}).items()
        },
        "services": running.get("services", {}),
        "problems": [problem.sentence for problem in problems.values()],
        "codes": [str(problem.code) for problem in problems.values()],
        "remedies": list(dict.fromkeys(problem.remedy for problem in problems.values())),
        "refused": any(problem.refused for problem in problems.values()),
        "lag": lag,
        "held": _held(settings) if kafka else [],
        "missing_topics": _missing_topics(settings) if kafka else {},
        "partitions": _partitions(settings, lag) if kafka else {},
        "not_running": _not_running(running),
        "replicas": _replicas(settings) if kafka else {},
        "set_aside": _set_aside(settings) if postgres else {},
        "jobs": _jobs(settings) if postgres else {},
        "paused": _paused(settings) if kafka else {},
        "guarantee": _guarantee(settings, kafka) if asked and guarantee else {},
    }


def _not_running(running: dict[str, Any]) -> list[str]:
    """The pipelines that the running embedded stack has no processor for: they came after it was started, or are broken."""
    services = running.get("services", {})
    if not any(name.startswith(PROCESSOR) for name in services):
        return []
    return [
        name for name in find().pipelines if not any(service.startswith(f"{PROCESSOR}{name}-") for service in services)
    ]


_SILENT = {KAFKA: Code.KAFKA_SILENT, POSTGRES: Code.POSTGRES_SILENT}


class _Problem(NamedTuple):
    """As `kafka_client.Trouble`, whose module is not imported for a stack that is down."""

    code: Code
    sentence: str
    remedy: str = "Start it, or correct its address."
    refused: bool = False
    partial: bool = False


def _problems(settings: Settings) -> dict[str, Trouble | _Problem]:
    """By server, which is set or part of the running stack, why it cannot be used. One of the stack that is just being started
    is not asked: that would keep us waiting.
    """
    problems: dict[str, Trouble | _Problem] = {}
    for product, own in ((KAFKA, settings.bootstrap_servers), (POSTGRES, settings.postgres_dsn)):
        service = settings.running.get("services", {}).get(SERVERS[product])
        if not own and service is not None and service["state"] != "running":
            sentence = f"{product} does not answer: in the embedded stack it is {service['state']}"
            problems[product] = _Problem(_SILENT[product], sentence)
        elif own or settings.running.get("bootstrap_servers" if product == KAFKA else "postgres_dsn"):
            problems |= _asked(product, settings)
    return problems


def _asked(product: str, settings: Settings) -> dict[str, Trouble | _Problem]:
    from onefold.operate import answering  # imports the clients, which a stack that is down does not need
    from onefold.postgres import NoLogin

    if product == KAFKA:
        trouble = answering.kafka(settings)
        return {product: trouble} if trouble else {}
    if (problem := answering.postgres(settings)) is None:
        return {}
    code, sentence = problem
    # The rest can be shown, and says what else is unknown.
    if code is Code.POSTGRES_LOGIN:
        return {product: _Problem(code, sentence, NoLogin.hint, refused=True)}
    if code is not Code.POSTGRES_RIGHT:
        return {product: _Problem(code, sentence)}
    remedy = "Run the SQL of `onefold grants` as an administrator of the database."
    return {product: _Problem(code, sentence, remedy, refused=True, partial=True)}


def _refusals(lag: dict[str, Any]) -> dict[str, Trouble | _Problem]:
    """The rights in Kafka without which the lag of a pipeline, or its age, is unknown; by their sentences."""
    sentences = dict.fromkeys(sentence for one in lag.values() for sentence in one["refused"])
    if not sentences:
        return {}
    from onefold.kafka_client import ALLOW

    return {sentence: _Problem(Code.KAFKA_RIGHT, sentence, ALLOW, refused=True) for sentence in sentences}


def _lag(settings: Settings, kafka: bool, postgres: bool) -> dict[str, Any]:
    from onefold.operate import lag

    found = lag.of_all(settings, postgres) if kafka else dict.fromkeys(find().pipelines, lag.UNKNOWN)
    return {domain: now.as_json() for domain, now in found.items()}


def _held(settings: Settings) -> list[dict[str, Any]]:
    from onefold.operate import held

    return [{**one._asdict(), "says": str(one), "remedy": one.remedy} for one in held.held(settings)]


def _replicas(settings: Settings) -> dict[str, Any]:
    from onefold.operate import replicas

    return {
        domain: now._asdict() | {"replicas": {name: one._asdict() for name, one in now.replicas.items()}}
        for domain, now in replicas.replicas_of_all(settings).items()
    }


def _set_aside(settings: Settings) -> dict[str, Any]:
    from onefold.operate import set_aside

    return {domain: found._asdict() for domain, found in set_aside.of_all(settings).items()}


def _jobs(settings: Settings) -> dict[str, Any]:
    from onefold.operate import queues

    return {queue: jobs._asdict() for queue, jobs in queues.jobs_of_all(settings).items()}


def _paused(settings: Settings) -> dict[str, Any]:
    from onefold.operate import pausing

    return {name: {**pausing.as_data(pause), "says": str(pause)} for name, pause in pausing.of_all(settings).items()}


def _guarantee(settings: Settings, kafka_answers: bool) -> dict[str, Any]:
    """End to end, of all pipelines together."""
    from onefold.operate import facts

    found = facts.of_all(settings) if kafka_answers else facts.without_kafka(settings)
    judged = judge(found, settings.allowed())
    return {**judged.as_data(), "lines": judged.lines(END_TO_END)}


def _partitions(settings: Settings, lag: dict[str, Any]) -> dict[str, str]:
    from onefold.operate import partitions

    return {name: one["partitions"] for name, one in lag.items() if one["partitions"]} | partitions.added(settings)


def _missing_topics(settings: Settings) -> dict[str, list[str]]:
    from onefold.operate import positions

    return positions.missing_topics(settings) or {}
