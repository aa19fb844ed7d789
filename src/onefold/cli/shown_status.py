"""The lines of `onefold status`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onefold.printable import printable

WIDTH = 24  # of the column of names


def lines(home: Path, found: dict[str, Any]) -> list[str]:
    """The lines for the result of `cli.commands.status.describe`, services first."""
    return _printable([*_services(home, found), *_addresses(found), *_changing(found), *_guarantee(found)])


def watched(home: Path, found: dict[str, Any]) -> list[str]:
    """The lines for a small screen: problems first, then the changing values, then the services."""
    problems = [f"! {problem}" for problem in found["problems"]]
    return _printable([*problems, *_changing(found), *_services(home, found), *_addresses(found)])


def _printable(shown: list[str]) -> list[str]:
    """Replace control characters: transactional ids, names of logs and reasons of jobs are untrusted."""
    return [printable(line) for line in shown]


def _changing(found: dict[str, Any]) -> list[str]:
    problems = [*_partitions(found), *_set_aside(found), *_held(found)]
    return [*_lags(found), *_paused(found), *problems, *_replicas(found), *_jobs(found)]


def _services(home: Path, found: dict[str, Any]) -> list[str]:
    shown = []
    if not found["running"]:
        shown.append(f"The embedded stack in {home} is not running: `onefold up` starts it.")
    for name, entry in found["services"].items():
        restarts = f"  restarts: {entry['restarts']}" if entry["restarts"] else ""
        shown.append(f"{name:{WIDTH}} {entry['state']:11} {entry['detail']}{restarts}".rstrip())
    return shown


def _addresses(found: dict[str, Any]) -> list[str]:
    addresses = {
        "Kafka": found["bootstrap_servers"],
        "PostgreSQL": found["postgres_dsn"],
        "dashboard": found["dashboard"],
    }
    if found["metrics"]:
        addresses["metrics"] = ", ".join(f"{name} {address}" for name, address in found["metrics"].items())
    return [f"{name:{WIDTH}} {address or '-'}" for name, address in addresses.items()]


def _lags(found: dict[str, Any]) -> list[str]:
    return [f"{'lag of ' + domain:{WIDTH}} {_lag(domain, lag, found)}" for domain, lag in found["lag"].items()]


def _lag(domain: str, lag: dict[str, Any], found: dict[str, Any]) -> str:
    if domain in found["not_running"]:
        return "not running: `onefold check` lists what is wrong, `onefold up` takes it in"
    if missing := found["missing_topics"].get(domain):
        hidden = lag["refused"] and lag["no_inputs"]
        return (
            f"unknown: {hidden}" if hidden else f"Kafka shows no topic {', '.join(missing)}: `onefold migrate` makes it"
        )
    most = "" if lag["exact"] else "at most "
    return f"{_behind(most, lag, 'input', 'to process')}, {_behind(most, lag, 'output', 'to write')}"


def _behind(most: str, lag: dict[str, Any], side: str, done: str) -> str:
    """Number of waiting records and age of the oldest record."""
    events, age_s, why = lag[f"{side}_events"], lag[f"{side}_s"], lag[f"no_{side}s"]
    because = f": {why}" if why else ""
    if events is None:
        return f"unknown {done}{f' ({why})' if why else ''}"
    age = f"age unknown{because}" if age_s is None else f"{age_s:,.1f} s"
    return f"{most if events else ''}{events:,} {done} ({age})"


def _paused(found: dict[str, Any]) -> list[str]:
    return [
        f"{domain:{WIDTH}} {one['says']}; `onefold resume {domain}` ends the pause"
        for domain, one in found.get("paused", {}).items()
    ]


def _partitions(found: dict[str, Any]) -> list[str]:
    return [f"{'partitions of ' + domain:{WIDTH}} {says}" for domain, says in found.get("partitions", {}).items()]


def _set_aside(found: dict[str, Any]) -> list[str]:
    return [
        f"{'rejected of ' + domain:{WIDTH}} {one['records']:,} output record{'' if one['records'] == 1 else 's'} in"
        f" onefold.rejected, the newest because of: {one['reason']}"
        for domain, one in found["set_aside"].items()
    ]


def _held(found: dict[str, Any]) -> list[str]:
    shown = []
    for one in found["held"]:
        shown.append(f"{'blocked':{WIDTH}} {one['says']}")
        shown.append(f"{'  look first' if one['committed'] else '  to end it':{WIDTH}} {one['remedy']}")
    return shown


def _replicas(found: dict[str, Any]) -> list[str]:
    shown = []
    for domain, now in found["replicas"].items():
        waiting = "unknown" if now["unpublished"] is None else f"{now['unpublished']:,}"
        rate = f"{now['decisions_a_second']:,.0f} decisions a second"
        shown.append(f"{'replicas of ' + domain:{WIDTH}} {rate}, {waiting} versions to publish")
        shown += [
            f"{'  ' + domain + ' ' + name:{WIDTH}} {_replica(one, now['decisions'])}"
            for name, one in now["replicas"].items()
        ]
    return shown


def _replica(one: dict[str, Any], decisions: int) -> str:
    """The state of a replica, in one line."""
    publishes = f", publishes {one['publishes']} task{'' if one['publishes'] == 1 else 's'}" if one["publishes"] else ""
    return f"{one['accepted']:,} of {decisions:,} recent decisions{publishes}, last record {one['last_s']:,.0f} s ago"


def _jobs(found: dict[str, Any]) -> list[str]:
    return [f"{'jobs of ' + queue:{WIDTH}} {_queue(jobs)}" for queue, jobs in found["jobs"].items()]


def _queue(jobs: dict[str, Any]) -> str:
    """The jobs of a queue, in one line."""
    told = (
        f"{jobs['pending']:,} pending, {jobs['active']:,} active, {jobs['deferred']:,} deferred, {jobs['done']:,} done"
    )
    if not jobs["oldest"]:
        return told
    return f"{told}; {jobs['oldest']} waits for {jobs['oldest_s']:,.0f} s" + (
        f": {jobs['reason']}" if jobs["reason"] else ""
    )


def _guarantee(found: dict[str, Any]) -> list[str]:
    told = found["guarantee"].get("lines", ())
    return [f"{'' if number else 'guarantee':{WIDTH}} {line}" for number, line in enumerate(told)]
