"""`onefold status`: services, connections and lag."""

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

# The prefix of the processors' service names in stack/plan.py.
PROCESSOR = "processor-"
# The servers' names in messages, with the service names in stack.json.
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
    settings = load()  # again, because a stack may have started or ended
    # Without the guarantee, which needs a query for every topic, and rarely changes.
    return shown_status.watched(settings.home, describe(settings, show_password, guarantee=False))


def describe(settings: Settings, show_password: bool = False, guarantee: bool = True) -> dict[str, Any]:
    """The content of `onefold status --json`.

    Args:
        show_password: keep the password in the DSN. Kafka's address never has a password.
        guarantee: include the guarantee.

    Returns:
        A dict with the keys:

        - "running", "bootstrap_servers", "postgres_dsn", "dashboard"
        - "metrics": {service: address}
        - "services": {name: {"state", ...}}
        - "problems": [sentence] of unusable servers, "codes": [code] and "remedies": [sentence] for the problems
        - "refused": whether a server refuses a login, a certificate or a right, so that waiting does not help
        - "lag": {pipeline: {...}} by `operate.lag`
        - "held": [{...}], the blocking transactions by `operate.hanging_transactions`
        - "missing_topics": {pipeline: [topic]}
        - "partitions": {pipeline: sentence} of pipelines with added partitions
        - "not_running": [pipeline]
        - "replicas": {pipeline: {"decisions_a_second", "unpublished", "replicas": {name: {...}}}}
        - "set_aside": {pipeline: {"records", "reason"}} of pipelines with rejected output records
        - "jobs": {queue: {...}}
        - "paused": {pipeline: {"at_ms", "by", "reason", "says"}}
        - "guarantee": {"holds", "lines", "findings": [...], "unknown": [...]}; {} without servers or without `guarantee`
    """
    running = settings.running
    servers = settings.bootstrap_servers or running.get("bootstrap_servers")
    dsn = settings.postgres_dsn or running.get("postgres_dsn")
    problems = _problems(settings)
    asked = bool(servers and dsn)
    kafka, postgres = (asked and (name not in problems or problems[name].partial) for name in (KAFKA, POSTGRES))
    lag = _lag(settings, kafka, postgres) if asked else {}
    problems |= _refusals(lag)
    # Refusals first: the first problem determines the error code, and a refusal the exit code.
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
    """The pipelines without a processor in the running embedded stack: added after the start, or broken."""
    services = running.get("services", {})
    if not any(name.startswith(PROCESSOR) for name in services):
        return []
    return [
        name for name in find().pipelines if not any(service.startswith(f"{PROCESSOR}{name}-") for service in services)
    ]


_SILENT = {KAFKA: Code.KAFKA_SILENT, POSTGRES: Code.POSTGRES_SILENT}


class _Problem(NamedTuple):
    """A problem with the fields of `kafka_client.Trouble`, whose import a stopped stack does not need."""

    code: Code
    sentence: str
    remedy: str = "Start it, or correct its address."
    refused: bool = False
    partial: bool = False


def _problems(settings: Settings) -> dict[str, Trouble | _Problem]:
    """The problem of each unusable server, of the settings or of the running stack. Does not query a server of the stack that
    is not running yet, because the query would wait for a time-out.
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
    from onefold.operate import ping  # imports the clients, which a stopped stack does not need
    from onefold.postgres import NoLogin

    if product == KAFKA:
        trouble = ping.kafka(settings)
        return {product: trouble} if trouble else {}
    if (problem := ping.postgres(settings)) is None:
        return {}
    code, sentence = problem
    if code is Code.POSTGRES_LOGIN:
        return {product: _Problem(code, sentence, NoLogin.hint, refused=True)}
    if code is not Code.POSTGRES_RIGHT:
        return {product: _Problem(code, sentence)}
    # Partial: with a missing right, the status can still show further values.
    remedy = "Run the SQL of `onefold grants` as an administrator of the database."
    return {product: _Problem(code, sentence, remedy, refused=True, partial=True)}


def _refusals(lag: dict[str, Any]) -> dict[str, Trouble | _Problem]:
    """The missing rights in Kafka that make the lag of a pipeline, or the age, unknown; by the problem's sentence."""
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
    from onefold.operate import hanging_transactions

    return [{**one._asdict(), "says": str(one), "remedy": one.remedy} for one in hanging_transactions.held(settings)]


def _replicas(settings: Settings) -> dict[str, Any]:
    from onefold.operate import replicas

    return {
        domain: now._asdict() | {"replicas": {name: one._asdict() for name, one in now.replicas.items()}}
        for domain, now in replicas.replicas_of_all(settings).items()
    }


def _set_aside(settings: Settings) -> dict[str, Any]:
    from onefold.operate import rejected_rows

    return {domain: found._asdict() for domain, found in rejected_rows.of_all(settings).items()}


def _jobs(settings: Settings) -> dict[str, Any]:
    from onefold.operate import queues

    return {queue: jobs._asdict() for queue, jobs in queues.jobs_of_all(settings).items()}


def _paused(settings: Settings) -> dict[str, Any]:
    from onefold.operate import pausing

    return {name: {**pausing.as_data(pause), "says": str(pause)} for name, pause in pausing.of_all(settings).items()}


def _guarantee(settings: Settings, kafka_answers: bool) -> dict[str, Any]:
    """The end-to-end guarantee of all pipelines together."""
    from onefold.operate import server_settings

    found = server_settings.of_all(settings) if kafka_answers else server_settings.without_kafka(settings)
    judged = judge(found, settings.allowed())
    return {**judged.as_data(), "lines": judged.lines(END_TO_END)}


def _partitions(settings: Settings, lag: dict[str, Any]) -> dict[str, str]:
    from onefold.operate import partitions

    return {name: one["partitions"] for name, one in lag.items() if one["partitions"]} | partitions.added(settings)


def _missing_topics(settings: Settings) -> dict[str, list[str]]:
    from onefold.operate import offsets

    return offsets.missing_topics(settings) or {}
