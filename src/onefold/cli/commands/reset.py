"""`onefold reset`: delete a pipeline's results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.cli import extras
from onefold.cli.options import DryRun
from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, USAGE
from onefold.operate import ping, pipelines
from onefold.operate.progress import StageProgress

if TYPE_CHECKING:
    from onefold.config.settings import Settings
    from onefold.operate.reset.plan import ResetJobs, ResetPlan


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Delete the input topics too. Their records are lost.")
    ] = False,
    keep_tables: Annotated[
        bool, typer.Option("--keep-tables", help="Keep the tables as they are until `onefold rebuild`.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was deleted as JSON; needs --yes.")] = False,
) -> None:
    """Delete a pipeline's results, so that it processes its inputs from the beginning: topics, states, offsets, rows. `reset`
    shows the list and asks. Processors, workers and sinks of the pipeline must not run.

    After an interruption, run `reset` again: until it has finished, no processor starts.

    Example: onefold reset runner
    """
    from onefold.operate.reset.reset import Reset

    progress, settings = StageProgress(), load()
    reset = Reset(domain, settings, inputs=inputs, keep_tables=keep_tables, jobs=jobs_of(domain, settings))
    ping.require_kafka(settings)
    if not dry_run:
        reset.refuse_while_running()
    plan = reset.plan()
    if not as_json:
        typer.echo("\n".join(_lines(plan)))
    if dry_run:
        if as_json:
            typer.echo(json.dumps({**plan.as_data(), "done": False}, indent=1))
        raise typer.Exit(FAILED)
    if not yes:
        _ask(plan, as_json)
    reset.refuse_while_running()  # again, because a service may have started during the plan or the question
    reset.run(lambda name: progress.say(f"{name} done"))
    progress.clear()
    if as_json:
        typer.echo(json.dumps({**plan.as_data(), "done": True}, indent=1))
    else:
        then = f"run its processors, then `onefold rebuild {plan.domain}`, then a sink"
        if not plan.rebuilt:
            then = "run its processors, its workers and a sink" if plan.jobs else "run its processors and a sink"
        if reset.paused:
            then = f"`onefold resume {plan.domain}`{f', `onefold rebuild {plan.domain}`' if plan.rebuilt else ''}"
            typer.echo(
                "If the handler has changed, restart processors and workers first: they have loaded the old one."
            )
        typer.echo(f"{plan.domain} starts over: {then}, then `onefold verify {plan.domain}`.")


def jobs_of(domain: str, settings: Settings) -> ResetJobs | None:
    """The pipeline's jobs for the reset; None without jobs. Raises UserError if a reset of the jobs is impossible."""
    (name,) = pipelines.checked([domain])
    pipeline = pipelines.found()[name]
    if not pipeline.jobs:
        return None
    extras.require("reset", "processor")
    from onefold.cli.commands.work import context_of
    from onefold.jobs.starting_over import StartingOver

    return StartingOver(pipeline, context_of(pipeline, settings, settings.usable_client()))


def _ask(plan: ResetPlan, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise UserError(
            Code.NOT_CONFIRMED,
            "no terminal to ask for confirmation",
            "Say --yes; --dry-run shows what would be deleted.",
            USAGE,
        )
    if typer.prompt(f"Type {plan.domain} to delete all this", default="", show_default=False) != plan.domain:
        typer.echo("Nothing was deleted.")
        raise typer.Exit(FAILED)


def _lines(plan: ResetPlan) -> Iterator[str]:
    yield f"`onefold reset {plan.domain}` deletes:"
    for topic, size in plan.topics.items():
        yield f"  topic {topic}, {size:,} offsets"
    yield f"  consumer group {plan.group}"
    for queue, (pending, done) in plan.jobs.items():
        yield f"  of {queue} all jobs, {pending:,} pending and {done:,} done, and the consumer group of its workers"
    for sentence in plan.effects:
        yield f"  {sentence}"
    for table, rows in plan.tables.items():
        yield f"  all {rows:,} rows of the table {table}"
    yield (
        "  the last verdict"
        if plan.rebuilt
        else f"  {plan.positions:,} positions in the ledger, rejected records, the last verdict"
    )
    if plan.inputs or plan.kept or plan.rebuilt:
        yield "And this stays:"
    for topic, size in plan.inputs.items():
        yield f"  input {topic}, {size:,} offsets, which are read from the beginning"
    for table in plan.rebuilt:
        yield f"  table {table}, unchanged until `onefold rebuild {plan.domain}`; no sink writes before that"
    for table in plan.kept:
        yield f"  table {table}: no statement in sql/merge writes to it"
    if plan.replayed and plan.inputs:
        yield f"  {plan.replayed:,} replayed records of the inputs count once, at their new position"
    if plan.dropped and plan.inputs:
        yield f"  {plan.dropped:,} dropped records of the inputs count no more"
