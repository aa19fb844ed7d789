"""`onefold rebuild`: recompute the tables of a pipeline from the output topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onefold import status_file
from onefold.cli.options import DryRun
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, REFUSED, USAGE
from onefold.operate.progress import StageProgress
from onefold.operate.times import WRITTEN, time_ms
from onefold.printable import printable
from onefold.status_file import LEFT_OUT

if TYPE_CHECKING:
    from onefold.operate.rebuild.rebuild import Rebuilt
    from onefold.operate.rebuild.table_diff import Difference
    from onefold.stack.child import Child

_STOP_S = 30.0  # Spark finishes the current batch


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    since: Annotated[
        str | None,
        typer.Option(help=f"Fix only rows that records since then have made: {WRITTEN}."),
    ] = None,
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was changed as JSON.")] = False,
) -> None:
    """Load the output topics into a temporary database, compare it with the live tables, and apply differences and offsets in
    one transaction. Readers see the old rows until it commits. Processors and sinks may run.

    Example: onefold rebuild runner --dry-run
    """
    from onefold.operate.rebuild.rebuild import Rebuild

    at_ms = None if since is None else _passed_ms(since)
    settings = load()
    rebuild = Rebuild(domain, settings, at_ms)
    progress, done = StageProgress(), None
    with rebuild.beside() as dsn, _sink(rebuild.name, dsn, settings) as sink:
        while done is None:
            rebuild.wait(dsn, lambda: _refuse_ended(sink), progress.say)
            progress.say(f"comparing the tables of {rebuild.name}")
            done = rebuild.replace(dsn, dry_run=dry_run)
    progress.clear()
    if as_json:
        typer.echo(json.dumps({**done.as_data(), "done": not dry_run}, indent=1))
    else:
        typer.echo("\n".join(_lines(done, dry_run)))
    raise typer.Exit(FAILED if dry_run and done.differing else 0)


def _passed_ms(since: str) -> int:
    now = datetime.now(UTC)
    at_ms = time_ms(since, now)
    if at_ms > now.timestamp() * 1000:
        raise UserError(Code.ARGUMENT_WRONG, f"{since} is still to come", "Write a time that has passed.", USAGE)
    return at_ms


@contextmanager
def _sink(name: str, dsn: str, settings: Settings) -> Iterator[Child]:
    """Run a separate sink, which writes to the temporary database. The sink ends with this process, even by SIGKILL."""
    from onefold.stack import data_directory, service_environment
    from onefold.stack.child import Child
    from onefold.stack.plan import environment
    from onefold.stack.service import of_command

    instance = f"rebuild-{name}"
    log = settings.home / "logs" / f"{instance}.log"
    service = of_command(
        instance,
        ("sink", name, "--instance", instance),
        log,
        _status(log),
        {**environment(settings, settings.kafka(), dsn), "ONEFOLD_METRICS_PORT": "0"},  # the live sink has the port
        stop_s=_STOP_S,
        inherits=service_environment.SINK,
    )
    data_directory.claim(settings.home)
    child = Child(service)
    _status(service.log).unlink(missing_ok=True)
    child.start()
    try:
        yield child
    finally:
        child.stop()
        _status(service.log).unlink(missing_ok=True)


def _status(log: Path) -> Path:
    """The status file of the sink with the log."""
    return log.with_suffix(".json")


def _refuse_ended(sink: Child) -> None:
    from onefold.stack.child import tail

    log = sink.service.log
    detail = status_file.read(_status(log)).get("detail", "")
    if LEFT_OUT in detail:  # the sink would retry for ever in the temporary database
        raise UserError(
            Code.SINK_STOPPED,
            f"the rebuild's own sink cannot continue, and the tables are unchanged: {detail}",
            "",
            REFUSED,
        )
    if (code := sink.poll()) is not None:
        raise UserError(
            Code.SINK_STOPPED,
            "the rebuild's own sink exited, and the tables are unchanged",
            f"Its log, {log}, ends with:\n{tail(log)}",
            code if code > 0 else FAILED,
        )


def _lines(done: Rebuilt, dry_run: bool) -> Iterator[str]:
    for one in done.tables:
        if one.differs or one.table != "onefold.rejected":
            figures = f"{one.changed:,} changed, {one.added:,} added, {one.deleted:,} deleted"
            moved = f", {one.moved:,} named another record as their origin" if one.moved else ""
            yield f"{one.table}: {one.rows:,} rows, {figures}{moved}"
        yield from (f"  {_example(example)}" for example in one.examples)
    for name in done.kept:
        yield f"{name}: left as it is, for it has no key, and does not say which records its rows come from"
    what = "differ, and nothing was changed" if dry_run else "changed"
    yield f"{done.differing:,} rows {what}; the live sink was held up for {done.held_s:.1f} s"


def _example(one: Difference) -> str:
    key = ", ".join(f"{name} {value}" for name, value in one.key.items())
    columns = [f"{name} {was}, by the log {now}" for name, (was, now) in one.columns.items()]
    return printable(f"{one.kind}: {key}" + (f": {'; '.join(columns)}" if columns else ""))
