"""`onefold redrive`: jobs whose effects are missing are put back into their queues."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer

from onefold.config.errors import UserError, first_line, of_processor
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE, USAGE
from onefold.operate import pipelines
from onefold.pipelines import Pipeline


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline.")],
    since: Annotated[
        str, typer.Option(help="Since when, as 2026-11-23 or 2026-11-23T12:00+01:00; UTC without a zone.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show missing results.")] = False,
) -> None:
    """Read the queues since a date, and requeue each job that is not done or whose objects are missing. Also requeues every
    later job of the same log. Idempotent.

    Example: onefold redrive orders --since 2026-11-23 --dry-run
    """
    import psycopg

    from onefold import postgres
    from onefold.processor.core.errors import ProcessorError

    settings = load()
    (name,) = pipelines.checked([domain])
    pipeline = pipelines.found()[name]
    if not pipeline.jobs:
        raise UserError(
            Code.NO_JOBS, f"{name} has no jobs", f"Declare some in {pipeline.declared_in}: `onefold docs jobs`.", USAGE
        )
    since_ms = _milliseconds(since)
    try:
        for queue in pipeline.jobs:
            _redrive(pipeline, queue, settings, since_ms, dry_run)
    except postgres.Unfit:
        raise
    except psycopg.Error as error:
        raise UserError(
            Code.POSTGRES_SILENT, f"the database does not answer: {first_line(error)}", exit_code=UNAVAILABLE
        ) from None
    except ProcessorError as error:
        raise of_processor(error) from None


def _redrive(pipeline: Pipeline, queue: str, settings: Settings, since_ms: int, dry_run: bool) -> None:
    from onefold.cli.commands.work import context_of, prepare
    from onefold.jobs import redrive, topics
    from onefold.jobs.loading import contract_of, declared, effect_of
    from onefold.jobs.pending import PostgresPending
    from onefold.jobs.writer import Writer
    from onefold.processor.io.admin import connect

    client = settings.usable_client()
    contract = contract_of(pipeline, queue)
    declared(pipeline, queue)  # a wrong declaration is told also where a server is away
    prepare(settings.postgres(), pipeline)
    found = 0
    with closing(PostgresPending(settings.postgres(), "redrive", pipeline.name)) as rows:
        effect = effect_of(pipeline, queue, context_of(pipeline, settings, client).held_by(rows.still))
        topics.create(connect(client), queue)
        writer = Writer(client, rows.still)
        jobs = redrive.intentions(queue, contract, client, since_ms, lambda sentence: typer.echo(sentence, err=True))
        for one in redrive.lacking(jobs, effect, rows):
            typer.echo(f"{queue} {one.job.log_id} {one.job.place.segment}/{one.job.place.entry}: {one.why}")
            found += 1
            if not dry_run:
                redrive.put_back(one, effect, rows, writer.put)
    if not found:
        typer.echo(f"{queue}: nothing is missing")
    else:
        typer.echo(f"{queue}: {found:,} {'are missing' if dry_run else 'were requeued'}")


def _milliseconds(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            Code.ARGUMENT_WRONG,
            f"--since is {text!r}",
            "Write a date as 2026-11-23, or a time as 2026-11-23T12:00.",
            USAGE,
        ) from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
