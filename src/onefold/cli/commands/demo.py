"""`onefold demo`: an end-to-end run with faults, and the verification."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console
from rich.table import Table

from onefold import postgres
from onefold.cli import extras
from onefold.cli.console import console
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK
from onefold.operate import offsets, pipelines, producing, verdicts
from onefold.operate.progress import StageProgress
from onefold.stack import control
from onefold.verify.loading import workload
from onefold.verify.verdict import VALID, Verdict
from onefold.workloads.campaigns import generate as generate_campaigns
from onefold.workloads.runner import generate as generate_runner

# Example messages of an A/B campaign. The last is sent twice, as after a lost acknowledgement.
SEED_SENDS = (
    (b"1", b'{"id": 1, "email": "A", "subject": "A", "sent": 100, "date": "2021-12-01 12:00:00"}'),
    (b"2", b'{"id": 2, "email": "B", "subject": "B", "sent": 100, "date": "2021-12-01 12:00:00"}'),
    (b"1", b'{"id": 1, "email": "A", "subject": "A", "sent": 1000, "date": "2021-12-01 13:00:00"}'),
)
SEED_KEYS = {key for key, _ in SEED_SENDS}
# Enough for kills during the processing, and few enough for a short demo.
EVENTS = 20_000
EVENTS_A_SECOND = 2_000
DRAIN_S = 180.0
POLL_S = 0.3
# Overrides the settings with which the demo would write to servers and folders of the user.
_NOT_MINE: dict[str, Any] = {
    "bootstrap_servers": None,
    "postgres_dsn": None,
    "postgres_dsn_file": None,
    "dashboard_dsn": None,
    "replication_factor": None,
    "min_insync_replicas": None,
    "kafka_options": {},
    "kafka_options_file": None,
    "spark_kafka": {},
    "spark_master": "local[*]",
    "spark_options": {},
    "objects": None,
    "objects_endpoint": None,
    "judge_home": None,
    "state_home": None,
    "kafka_port": 0,
    "postgres_port": 0,
    "dashboard_port": 0,
}
CAMPAIGNS_SHOWN = (
    "SELECT id, email, subject, date_1, sent_1, date_2, sent_2, computed FROM campaigns.totals ORDER BY id LIMIT 5"
)
RUNS_SHOWN = (
    "SELECT run_id, user_id, total_meters, round(total_time_ms / 60000.0, 1) AS minutes, current AS tendency "
    "FROM runner.stats JOIN runner.tendency USING (user_id) ORDER BY total_meters DESC, run_id LIMIT 5"
)


def command(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running, and print how to connect.")] = False,
    events: Annotated[int, typer.Option(min=1_000, max=1_000_000, help="Events to produce.")] = EVENTS,
    seed: Annotated[int, typer.Option(help="Another seed generates other events and kills at other moments.")] = 1,
) -> None:
    """Run an end-to-end demo: start a stack, produce events with duplicates and out of order, kill -9 processors and the
    sink, then show the tables and verify every row.

    The demo has a data directory of its own, made from scratch each time. It does not touch your stack.

    Example: onefold demo --keep
    """
    extras.require("demo", *extras.NEEDS["demo"])
    mine = load()
    settings = mine.model_copy(update={"home": mine.home / "demo", **_NOT_MINE})
    progress = StageProgress()
    control.down(settings, wipe=True)
    try:
        running, _ = control.up(settings, _shown(), [], progress)
        if dashboard := running["dashboard"]:
            progress.done(f"the dashboard shows it live: {dashboard}")
        killed = _run(settings, events, seed, progress)
        passed = _show(settings, killed, seed)
    except BaseException as error:
        progress.clear()
        progress.say("stopping")
        # After an error the logs stay for the user; after an interruption all data is removed.
        control.down(settings, wipe=isinstance(error, KeyboardInterrupt))
        progress.clear()
        raise
    if keep:
        _print_how_to_connect(settings)
    else:
        control.down(settings, wipe=passed)
    raise typer.Exit(OK if passed else FAILED)


def _run(settings: Settings, events: int, seed: int, progress: StageProgress) -> list[str]:
    """Produce events, kill services, and wait until the sink has written all rows. Returns the killed services."""
    rng = random.Random(seed)  # noqa: S311 - the moments of the kills must be repeatable, not secret
    moments = {
        "processor-runner-1": rng.uniform(0.2, 0.4),
        "sink-1": rng.uniform(0.5, 0.7),
        "processor-campaigns-1": 0.8,
    }
    killed: list[str] = []
    produced = 0
    for produced in producing.produce(_events(events, seed), settings.client(), EVENTS_A_SECOND):
        progress.say(f"producing events: {produced} so far, with duplicates and in disorder")
        for service, share in moments.items():
            if service not in killed and produced >= share * events:
                _kill(settings, service)
                killed.append(service)
                progress.done(f"kill -9 {service}, after {produced} events")
    progress.done(f"{produced} records are in Kafka")
    _drain(settings, progress)
    progress.done("PostgreSQL has the result of every record")
    return killed


def _events(count: int, seed: int) -> Iterator[producing.Message]:
    """Events of both pipelines, mixed. SEED_SENDS come first, and the last of SEED_SENDS again at the end."""
    yield from (("campaigns.sends", key, value) for key, value in SEED_SENDS)
    campaigns = (made for made in generate_campaigns(seed, count // 10) if made.key not in SEED_KEYS)
    for index, made in enumerate(generate_runner(seed, count * 9 // 10)):
        yield made.topic, made.key, made.value
        if index % 9 == 0:
            yield from ((sent.topic, sent.key, sent.value) for sent in itertools.islice(campaigns, 1))
    yield from ((sent.topic, sent.key, sent.value) for sent in campaigns)
    yield "campaigns.sends", *SEED_SENDS[-1]


def _kill(settings: Settings, service: str) -> None:
    """Kill a service of the demo's stack with SIGKILL, by the pid in stack.json."""
    # The user may have stopped the stack, or the service may have exited.
    pid = stack_state.read_running(settings.home).get("services", {}).get(service, {}).get("pid")
    with suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            return
    raise UserError(
        Code.MEASUREMENT_FAILED,
        f"{service} is not running, so it cannot be killed",
        f"Its log is in {settings.home / 'logs'}.",
    )


def _drain(settings: Settings, progress: StageProgress) -> None:
    least, moved_at = sys.maxsize, time.monotonic()
    pause = threading.Event()
    while True:
        behind = {domain: found["events"] for domain, found in offsets.lag_of_all(settings).items()}
        if all(events == 0 for events in behind.values()):
            return
        left = sum(sys.maxsize if events is None else events for events in behind.values())  # None: unknown lag
        if left < least:
            least, moved_at = left, time.monotonic()
        shown = {domain: "unknown" if events is None else events for domain, events in behind.items()}
        progress.say("draining: " + ", ".join(f"{domain} {events} to go" for domain, events in shown.items()))
        if time.monotonic() - moved_at > DRAIN_S:
            waits = ", ".join(f"{domain} has {events} to go" for domain, events in shown.items() if events)
            raise UserError(
                Code.MEASUREMENT_FAILED,
                f"nothing more was written to PostgreSQL for {DRAIN_S:.0f} s: {waits}",
                f"The logs are in {settings.home / 'logs'}.",
            )
        pause.wait(POLL_S)


def _show(settings: Settings, killed: list[str], seed: int) -> bool:
    """Print tables, verdicts and a summary. Returns whether every verdict is valid and the example row is correct."""
    out = console()
    with postgres.connect(settings.postgres(), "onefold demo") as connection:
        _print(out, "campaigns.totals", connection.execute(CAMPAIGNS_SHOWN))
        _print(out, "runner.stats with runner.tendency", connection.execute(RUNS_SHOWN))
        row = connection.execute("SELECT computed FROM campaigns.totals WHERE id = 1").fetchone()
    asked = [verdicts.ask(settings, domain) for domain in _shown()]
    for verdict in asked:
        out.print(f"verify {verdict.domain}: {verdict.outcome}. {verdict.reason}")
    passed = row == (1100,) and all(verdict.outcome == VALID for verdict in asked)
    out.print()
    out.print(
        _proved(asked, killed, seed)
        if passed
        else "The tables are NOT correct: run the demo with --keep, then `onefold verify NAME`."
    )
    return passed


def _print(out: Console, title: str, cursor: psycopg.Cursor[Any]) -> None:
    table = Table(title=title, title_justify="left")
    for column in cursor.description or ():
        table.add_column(column.name)
    for row in cursor:
        table.add_row(*("" if value is None else str(value) for value in row))
    out.print(table)


def _proved(asked: list[Verdict], killed: list[str], seed: int) -> str:
    counts = {name: sum(verdict.counts[name] for verdict in asked) for name in ("accepted", "ignored")}
    rows = sum(check.expected for verdict in asked for check in verdict.checks if check.what in _tables())
    return (
        f"What was proved: Kafka took {counts['accepted'] + counts['ignored']} records, {counts['ignored']} of them duplicates "
        f"or late. kill -9 ended {', '.join(killed)} in between. `verify` recomputed each of the {rows} rows in PostgreSQL "
        f"from the input topics, with code that shares nothing with the handlers: no row is missing, extra or different. "
        f"Campaign 1 has 1100 mails, not 2100, although its last message came twice. (seed {seed})"
    )


def _shown() -> list[str]:
    """The pipelines with a verification model."""
    return [name for name, pipeline in pipelines.found().pipelines.items() if pipeline.workload]


def _tables() -> set[str]:
    return {table.name for domain in _shown() for table in workload(domain).tables}


def _print_how_to_connect(settings: Settings) -> None:
    running = stack_state.read_running(settings.home)
    typer.echo(
        f"""
The stack is still up. It lives in {settings.home}:
  export ONEFOLD_HOME={settings.home}
  onefold status                  what runs, and the lag
  onefold sql                     psql; or by the connection that `onefold status --show-password` prints
  onefold kafka console-producer --topic campaigns.sends
                                  Kafka's own command line; the broker is at {running["bootstrap_servers"]}
  {running["dashboard"] or "onefold dashboard":<32}the tables, live
  onefold verify campaigns        prove it again, after whatever you did
  onefold down                    stop it"""
    )
