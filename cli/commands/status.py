"""`onefold status`: what runs, how to connect, how far behind."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from onefold.operate import hiding
from onefold.operate.settings import Settings, load
from onefold.pipelines import find

# What the services are called that fold; stack/plan.py names them.
PROCESSOR = "processor-"


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    show_password: Annotated[bool, typer.Option("--show-password", help="Print the database's password too.")] = False,
) -> None:
    """Show the services, how to connect, the lag of each domain to the database commit (0: drained), and its replicas.

    Example: onefold status --json
    """
    settings = load()
    found = describe(settings, show_password)
    typer.echo(json.dumps(found, indent=1) if as_json else _text(settings, found))


def describe(settings: Settings, show_password: bool = False) -> dict[str, Any]:
    """{"running", "bootstrap_servers", "postgres_dsn", "dashboard", "services": {name: {"state", ...}},
    "lag": {domain: {...}}, "missing_topics": {domain: [...]}, "not_running": [domain], "replicas": {domain:
    {"decisions_a_second", "unpublished", "replicas": {name: {...}}}} of those that have some.
    The DSN is without its password unless that is asked for.
    """
    running = settings.running
    servers = settings.bootstrap_servers or running.get("bootstrap_servers")
    dsn = settings.postgres_dsn or running.get("postgres_dsn")
    asked = bool(servers and dsn and _answering(running))
    lag = _lag(settings) if asked else {}
    return {
        "running": bool(running),
        "bootstrap_servers": servers,
        "postgres_dsn": dsn if show_password or not dsn else hiding.dsn(dsn),
        "dashboard": running.get("dashboard"),
        "services": running.get("services", {}),
        "lag": lag,
        "missing_topics": _missing_topics(settings) if asked else {},
        "not_running": _not_running(running),
        "replicas": _replicas(settings) if _answers(lag) else {},
    }


def _not_running(running: dict[str, Any]) -> list[str]:
    """The pipelines that the running embedded stack has no processor for: they came after it was started, or are broken."""
    services = running.get("services", {})
    if not any(name.startswith(PROCESSOR) for name in services):
        return []
    return [
        name for name in find().pipelines if not any(service.startswith(f"{PROCESSOR}{name}-") for service in services)
    ]


def _answering(running: dict[str, Any]) -> bool:
    """Whether it makes sense to ask: a broker that is just being started again would keep us waiting."""
    services = running.get("services", {})
    return all(services[name]["state"] == "running" for name in ("kafka", "postgres") if name in services)


def _lag(settings: Settings) -> dict[str, Any]:
    from onefold.operate import positions  # imports the clients, which a stack that is down does not need

    return positions.lag_of_all(settings)


def _answers(lag: dict[str, Any]) -> bool:
    """Whether Kafka does: what does not answer one question is not kept waiting for by another."""
    return any(value["input_events"] is not None for value in lag.values())


def _replicas(settings: Settings) -> dict[str, Any]:
    from onefold.operate import replicas

    return {
        domain: now._asdict() | {"replicas": {name: one._asdict() for name, one in now.replicas.items()}}
        for domain, now in replicas.replicas_of_all(settings).items()
    }


def _missing_topics(settings: Settings) -> dict[str, list[str]]:
    from onefold.operate import positions

    return positions.missing_topics(settings) or {}


def _text(settings: Settings, found: dict[str, Any]) -> str:
    lines = []
    if not found["running"]:
        lines.append(f"The embedded stack in {settings.home} is not running: `onefold up` starts it.")
    for name, entry in found["services"].items():
        restarts = f"  restarts: {entry['restarts']}" if entry["restarts"] else ""
        lines.append(f"{name:24} {entry['state']:11} {entry['detail']}{restarts}".rstrip())
    lines.append(f"{'Kafka':24} {found['bootstrap_servers'] or '-'}")
    lines.append(f"{'PostgreSQL':24} {found['postgres_dsn'] or '-'}")
    lines.append(f"{'dashboard':24} {found['dashboard'] or '-'}")
    for domain, lag in found["lag"].items():
        shown = {name: "unknown" if value is None else f"{value:,}" for name, value in lag.items()}
        if domain in found["not_running"]:
            lines.append(
                f"{'lag of ' + domain:24} not running: `onefold check` lists what is wrong, `onefold up` takes it in"
            )
        elif missing := found["missing_topics"].get(domain):
            lines.append(f"{'lag of ' + domain:24} Kafka has no topic {', '.join(missing)}: `onefold prepare` makes it")
        else:
            lines.append(f"{'lag of ' + domain:24} {shown['input_events']} to fold, {shown['output_events']} to land")
    for domain, now in found["replicas"].items():
        waiting = "unknown" if now["unpublished"] is None else f"{now['unpublished']:,}"
        rate = f"{now['decisions_a_second']:,.0f} decisions a second"
        lines.append(f"{'replicas of ' + domain:24} {rate}, {waiting} versions to publish")
        lines += [f"{'  ' + domain + ' ' + name:24} {_replica(one)}" for name, one in now["replicas"].items()]
    return "\n".join(lines)


def _replica(one: dict[str, Any]) -> str:
    """How a replica is, in one line."""
    if one["silent"]:
        return f"not heard of for {one['heard_s']:.0f} s, {one['behind']:,} versions behind"
    publishes = f", publishes {one['publishes']} of {one['tasks']} tasks" if one["publishes"] else ""
    return f"{one['won']:,} of {one['decided']:,} decisions won, {one['behind']:,} versions behind{publishes}"
