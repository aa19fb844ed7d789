"""`onefold chaos`: faults in a running stack, and the verification."""

from __future__ import annotations

import json
import random
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from onefold.cli import asking
from onefold.cli.console import console
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK, USAGE
from onefold.operate import foreign, pipelines
from onefold.operate.progress import StageProgress

if TYPE_CHECKING:
    from onefold.chaos.nemeses import Nemesis, Stack
    from onefold.chaos.run import RunOutcome


_LOAD = "generated records, some without keys or against their schemas, into the input topics"


class StackKind(StrEnum):
    """The kinds of stacks for fault injection."""

    DOCKER = "docker"
    EMBEDDED = "embedded"


def command(
    nemesis: Annotated[
        list[str] | None, typer.Option(help="What to do to it; may be given several times. Default: everything.")
    ] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(help="The pipeline under load; repeatable. Default: each in turn.")
    ] = None,
    stack: Annotated[
        StackKind | None,
        typer.Option(
            help="docker: the containers of docker-compose.yml. embedded: what `onefold up` started. Default: the embedded "
            "one if it runs."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed sends the same events; 0 picks one.")] = 0,
    seconds: Annotated[float, typer.Option(min=1.0, help="Load after the fault, at least.")] = 10.0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before load goes to servers that the stack did not start.")
    ] = False,
    list_them: Annotated[bool, typer.Option("--list", help="Print the faults and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every outcome as a line of JSON.")] = False,
) -> None:
    """Send load through a running stack, inject a fault, heal it, and verify every row. Readers query the pipeline's
    invariants (sql/invariant) all the time: an invariant must hold in every snapshot.

    The load has records without keys and records that break their schemas. On a Kafka or PostgreSQL that the stack did not
    start, the command asks first.

    Exit code 0: every row is right, every invariant held, and the pipeline recovered in time. 1: otherwise. Use `chaos` on
    a stack whose data you can spare.

    Example: onefold chaos --stack docker --nemesis kill-processor --pipeline runner
    """
    from onefold.chaos import embedded
    from onefold.chaos.nemeses.table import nemeses

    settings = load()
    kind = stack or (StackKind.EMBEDDED if settings.running else StackKind.DOCKER)
    known = nemeses() if kind is StackKind.DOCKER else embedded.possible(nemeses())
    if list_them:
        for name, found in known.items():
            typer.echo(f"{name:20} {found.description}")
        return
    for name in nemesis or ():
        if name not in known:
            raise UserError(
                Code.NAME_UNKNOWN, f"there is no fault {name} for {kind}", "See them with: onefold chaos --list", USAGE
            )
    domains = pipelines.checked(pipeline or pipelines.domains())
    if kind is StackKind.EMBEDDED and (others := foreign.servers(settings)):
        asking.confirm(
            f"`onefold chaos` writes {_LOAD} of {', '.join(domains)}, on {' and '.join(others)}", yes, as_json
        )
    chosen = [known[name] for name in nemesis or known]
    picked = seed or random.randrange(1, 10**6)  # noqa: S311 - not a secret
    outcomes = _run(kind, settings, chosen, domains, picked, seconds, as_json)
    if not as_json:
        _render(outcomes)
    raise typer.Exit(OK if all(outcome.passed for outcome in outcomes) else FAILED)


def _run(
    kind: StackKind,
    settings: Settings,
    chosen: list[Nemesis],
    domains: list[str],
    seed: int,
    seconds: float,
    as_json: bool,
) -> list[RunOutcome]:
    from onefold.chaos import run as chaos

    stacks, settings = _stacks(kind, settings, domains)
    progress, outcomes = StageProgress(), []
    for found in chosen:
        for domain in domains:
            outcome = chaos.run(stacks[domain], settings, domain, found, seed=seed, seconds=seconds, say=progress.say)
            outcomes.append(outcome)
            progress.done(f"{domain} under {found.name}: {_in_words(outcome)}")
            if as_json:
                typer.echo(json.dumps(outcome.as_data()))
    progress.clear()
    return outcomes


def _stacks(kind: StackKind, settings: Settings, domains: list[str]) -> tuple[dict[str, Stack], Settings]:
    """The stack for the faults of each pipeline, and the settings with the addresses of the stack's servers."""
    if kind is StackKind.EMBEDDED:
        if not settings.running:
            raise UserError(
                Code.STACK_STOPPED, f"the embedded stack in {settings.home} is not running", "Start it with: onefold up"
            )
        from onefold.chaos.aim import publisher_in
        from onefold.chaos.embedded import Embedded

        return {domain: Embedded(settings, domain, publisher_in(domain, settings)) for domain in domains}, settings
    from onefold.chaos.containers import Containers

    containers = Containers()
    settings = containers.settings(settings)
    return {domain: containers.under(domain, settings) for domain in domains}, settings


def _in_words(outcome: RunOutcome) -> str:
    held = "an invariant broken, " if outcome.broken else ""
    return f"{outcome.verdict}, {held}{'in time' if outcome.in_time else 'too late'} (seed {outcome.seed})"


def _render(outcomes: list[RunOutcome]) -> None:
    table = Table(title=f"onefold chaos (seed {outcomes[0].seed})", title_justify="left", title_style="bold")
    for heading in ("pipeline", "nemesis", "events", "processor stall", "sink stall", "snapshots", "verdict"):
        table.add_column(heading)
    for outcome in outcomes:
        style = "" if outcome.passed else "red"
        verdict = outcome.verdict if outcome.verdict == "valid" else f"{outcome.verdict}: {outcome.reason}"
        row: list[Any] = [outcome.workload, outcome.nemesis, f"{outcome.events:,}"]
        row += [f"{outcome.stalls[stage]} s of at most {bound:.0f}" for stage, bound in outcome.bounds.items()]
        table.add_row(*row, f"{outcome.looks:,}", "\n".join([verdict, *outcome.broken]), style=style)
    console().print(table)
