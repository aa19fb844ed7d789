"""`onefold dead-letters replay`: write the original records to the input topics again."""

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
from onefold.config.settings import load
from onefold.exit_codes import FAILED
from onefold.operate.progress import StageProgress

if TYPE_CHECKING:
    from onefold.operate.dead_letters.letters import DeadLetters, Wanted


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    places: Places = None,
    everything: Everything = False,
    reason: Reason = "",
    since: Since = "",
    until: Until = "",
    key: Key = "",
    topic: Topic = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write the original records of dead letters to their input topics again, each exactly once: a second replay does
    nothing. The replayed records come after later records of their keys; if the pipeline parks keys, the later records are
    replayed after them, in order.

    Exit code 1: some records could not be replayed, with the reasons. --dry-run writes nothing, and tries each record with
    the current schema, handler and states.

    Example: onefold dead-letters replay runner --reason "the handler raised" --dry-run
    """
    from onefold.operate.dead_letters.letters import DeadLetters

    common.check_chosen(everything, places, reason, since, until, key, topic)
    wanted = common.wanted(reason, since, until, key, topic, places or ())
    letters = DeadLetters(domain, load())
    code = _rehearse(letters, wanted, as_json) if dry_run else _replay(letters, wanted, as_json)
    raise typer.Exit(code)


def _replay(letters: DeadLetters, wanted: Wanted, as_json: bool) -> int:
    from onefold.operate.dead_letters import replay

    progress = StageProgress()
    try:
        report = replay.replay(letters, wanted, progress=lambda done: progress.say(f"dead letters: {done:,}"))
    finally:
        progress.clear()
    lacking = {str(place): lacks for place, lacks in report.lacking.items()}
    failed = {str(place): why for place, why in report.failed.items()}
    if as_json:
        replayed = [str(letter.place) for letter in report.done]
        replayed += [str(letter.place) for letter in report.followed]
        data = {"replayed": replayed, "replayed_before": len(report.before), "lacking": lacking, "failed": failed}
        data |= {"stalled": report.stalled} if report.stalled else {}
        typer.echo(json.dumps(data, indent=1))
    else:
        for place, why in (lacking | failed).items():
            typer.echo(common.wrapped(f"{place}: {why}", ""))
        typer.echo(
            f"{len(report.done):,} replayed, {len(report.before):,} had been replayed or dropped before, "
            f"{len(failed):,} cannot be."
        )
        common.tell_parked(report)
    return FAILED if failed or report.stalled else 0


def _rehearse(letters: DeadLetters, wanted: Wanted, as_json: bool) -> int:
    from onefold.operate.dead_letters import replay
    from onefold.operate.dead_letters.dry_run import rehearse

    report, would = replay.Report(), 0
    if as_json:
        typer.echo('{\n "would": {', nl=False)
    # One record at a time, because a million records would not fit into memory.
    for letter, what in rehearse(letters, replay.would_be_done(letters, wanted, report)):
        if as_json:
            typer.echo(f"{',' if would else ''}\n  {json.dumps(str(letter.place))}: {json.dumps(what)}", nl=False)
        else:
            typer.echo(common.wrapped(f"{letter.place}: {what}", ""))
        would += 1
    failed = {str(place): why for place, why in report.failed.items()}
    if as_json:
        rest = json.dumps({"replayed_before": len(report.before), "failed": failed}, indent=1)
        typer.echo(f"\n }},{rest.removeprefix('{')}")
    else:
        for place, why in failed.items():
            typer.echo(common.wrapped(f"{place}: cannot be replayed: {why}", ""))
        typer.echo(
            f"{would:,} would be replayed, {len(report.before):,} have been, {len(failed):,} cannot be. "
            "Nothing was written."
        )
    return FAILED if would or failed else 0
