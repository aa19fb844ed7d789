"""`onefold dead-letters drop`: exclude rejected records for ever."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.cli.commands.dead_letters import common
from onefold.cli.commands.dead_letters.common import (
    AsJson,
    Everything,
    Key,
    Places,
    Reason,
    Since,
    Topic,
    Until,
)
from onefold.cli.options import DryRun
from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, USAGE
from onefold.operate import pausing
from onefold.operate.progress import StageProgress

if TYPE_CHECKING:
    from onefold.operate.dead_letters.replay import Report

# The limit of a dead letter's reason, too. Every processor keeps all receipts in memory.
_BECAUSE_MAX = 500


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    places: Places = None,
    because: Annotated[str, typer.Option(help="Why, in at most 500 characters; the receipt keeps it.")] = "",
    everything: Everything = False,
    reason: Reason = "",
    since: Since = "",
    until: Until = "",
    key: Key = "",
    topic: Topic = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Decide that the records of dead letters never count, even after a reset with a handler that would accept the records.
    A drop deletes and sends no records: `verify` counts the records as dead letters, the dashboard no longer does. A drop is
    final: a dropped dead letter cannot be replayed. Dead letters of inputs that the pipeline or the workers write cannot be
    dropped, because a reset deletes these topics and the records come again. If the pipeline parks keys, waiting records are
    replayed in order, even if a filter selects them. Name the places of waiting records to drop the records too.

    Exit code 1: some dead letters could not be dropped, with the reasons. --dry-run writes nothing.

    Example: onefold dead-letters drop runner runner.updates.dead/0/12 --because "a test event of the shop"
    """
    from onefold.operate.dead_letters import replay
    from onefold.operate.dead_letters.letters import DeadLetters
    from onefold.processor.io.replays import Dropped

    common.check_chosen(everything, places, reason, since, until, key, topic)
    if not because.strip():
        hint = '--because "a test event of the shop"'
        raise UserError(Code.ARGUMENT_WRONG, "a drop needs the reason why, for everybody who looks later", hint, USAGE)
    if len(because) > _BECAUSE_MAX:
        raise UserError(
            Code.ARGUMENT_WRONG,
            f"--because has {len(because):,} characters, and a receipt keeps {_BECAUSE_MAX}",
            exit_code=USAGE,
        )
    wanted = common.wanted(reason, since, until, key, topic, places or ())
    letters, dropped = DeadLetters(domain, load()), Dropped(pausing.whoami(), because.strip())
    if dry_run:
        report = replay.Report()
        report.done = [one for one, _ in replay.would_be_done(letters, wanted, report, dropped)]
    else:
        progress = StageProgress()
        try:
            report = replay.drop(
                letters, wanted, dropped, progress=lambda done: progress.say(f"dead letters: {done:,}")
            )
        finally:
            progress.clear()
    _tell(report, dry_run, as_json)
    raise typer.Exit(FAILED if report.failed or report.stalled or (dry_run and report.done) else 0)


def _tell(report: Report, dry_run: bool, as_json: bool) -> None:
    done = [str(letter.place) for letter in report.done]
    failed = {str(place): why for place, why in report.failed.items()}
    if as_json:
        data = {"would" if dry_run else "dropped": done, "done_before": len(report.before), "failed": failed}
        followed = [str(letter.place) for letter in report.followed]
        data |= {"would_replay" if dry_run else "replayed": followed} if followed else {}
        data |= {"stalled": report.stalled} if report.stalled else {}
        typer.echo(json.dumps(data, indent=1))
        return
    for place in done if dry_run else ():
        typer.echo(common.wrapped(f"{place}: would be dropped", ""))
    for place, why in failed.items():
        typer.echo(common.wrapped(f"{place}: {why}", ""))
    typer.echo(
        f"{len(done):,} {'would be ' if dry_run else ''}dropped, {len(report.before):,} had been replayed or dropped before, "
        f"{len(failed):,} cannot be.{' Nothing was written.' if dry_run else ''}"
    )
    common.tell_parked(report, dry_run)
