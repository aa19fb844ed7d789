"""`onefold jobs requeue`: write jobs without results to the queues again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.cli.options import DryRun
from onefold.config.errors import UserError, of_postgres, of_processor
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK, USAGE
from onefold.operate import pipelines
from onefold.operate.times import WRITTEN, time_ms
from onefold.pipelines import Pipeline

if TYPE_CHECKING:
    from onefold.jobs.requeue import Lacking


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline.")],
    since: Annotated[str, typer.Option(help=f"Read the queues from then on: {WRITTEN}.")],
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the jobs of each queue as JSON.")] = False,
) -> None:
    """Read the queues since a time, and requeue each job that is not done or whose objects are missing. Also requeues every
    later job of the same log. Idempotent.

    Example: onefold jobs requeue orders --since 2026-11-23 --dry-run
    """
    import psycopg

    from onefold.processor.core.errors import ProcessorError

    settings = load()
    (name,) = pipelines.checked([domain])
    pipeline = pipelines.found()[name]
    if not pipeline.jobs:
        raise UserError(
            Code.NO_JOBS, f"{name} has no jobs", f"Declare some in {pipeline.declared_in}: `onefold docs jobs`.", USAGE
        )
    since_ms = time_ms(since, datetime.now(UTC))
    missing: dict[str, int] = {}
    listed: dict[str, list[dict[str, Any]]] = {queue: [] for queue in pipeline.jobs}
    try:
        for queue in pipeline.jobs:
            missing[queue] = 0
            for one in _requeue(pipeline, queue, settings, since_ms, dry_run):
                missing[queue] += 1
                if as_json:
                    listed[queue].append({"log": one.job.log_id, **one.job.place._asdict(), "why": one.why})
                else:
                    typer.echo(f"{queue} {one.job.log_id} {one.job.place.segment}/{one.job.place.entry}: {one.why}")
            if not as_json:
                done = f"{missing[queue]:,} {'are missing' if dry_run else 'were requeued'}"
                typer.echo(f"{queue}: {done if missing[queue] else 'nothing is missing'}")
    except psycopg.Error as error:
        raise of_postgres(error, "the jobs could not be looked up in PostgreSQL") from None
    except ProcessorError as error:
        raise of_processor(error) from None
    if as_json:
        typer.echo(json.dumps({"missing" if dry_run else "requeued": listed}, indent=1))
    raise typer.Exit(FAILED if dry_run and any(missing.values()) else OK)


def _requeue(pipeline: Pipeline, queue: str, settings: Settings, since_ms: int, dry_run: bool) -> Iterator[Lacking]:
    from onefold.cli.commands.work import context_of, prepare
    from onefold.jobs import requeue, topics
    from onefold.jobs.loading import contract_of, declared, effect_of
    from onefold.jobs.pending import PostgresPending
    from onefold.jobs.writer import RecordWriter
    from onefold.processor.io.admin import connect

    client = settings.usable_client()
    contract = contract_of(pipeline, queue)
    declared(pipeline, queue)  # reports a wrong declaration even if a server is down
    prepare(settings.postgres(), pipeline)
    with closing(PostgresPending(settings.postgres(), "requeue", pipeline.name)) as rows:
        effect = effect_of(pipeline, queue, context_of(pipeline, settings, client).held_by(rows.still))
        topics.create(connect(client), queue)
        writer = RecordWriter(client, rows.still)
        jobs = requeue.intentions(queue, contract, client, since_ms, lambda sentence: typer.echo(sentence, err=True))
        for one in requeue.lacking(jobs, effect, rows):
            yield one
            if not dry_run:
                requeue.put_back(one, effect, rows, writer.put)
