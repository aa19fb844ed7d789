"""`onefold dead-letters replay`: put them back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.cli.commands.dead_letters import common
from onefold.cli.commands.dead_letters.common import Key, Reason, Since, Topic, Until
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, USAGE
from onefold.operate.errors import UserError
from onefold.operate.progress import Progress
from onefold.operate.settings import load

if TYPE_CHECKING:
    from onefold.operate.dead_letters.letters import DeadLetters, Wanted


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    places: Annotated[
        list[str] | None, typer.Argument(help="TOPIC/PARTITION/OFFSET of dead letters, or of their sources.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    reason: Reason = "",
    since: Since = "",
    until: Until = "",
    key: Key = "",
    topic: Topic = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the outcome of each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Write the original records of dead letters to their input topics again, each exactly once: a second replay does
    nothing. The replayed records come after later records of their keys.

    Exit code 1: some records could not be replayed, with the reasons. --dry-run writes nothing, and tries each record with
    the current schema, handler and states.

    Example: onefold dead-letters replay runner --reason "the handler raised" --dry-run
    """
    from onefold.operate.dead_letters.letters import DeadLetters

    if not (everything or places or reason or since or until or key or topic):
        raise UserError(
            Code.ARGUMENT_WRONG,
            "it is not said which",
            "Name places, filter with --reason, --key and so on, or say --all.",
            USAGE,
        )
    wanted = common.wanted(reason, since, until, key, topic, places or ())
    letters = DeadLetters(domain, load())
    code = _rehearse(letters, wanted, as_json) if dry_run else _replay(letters, wanted, as_json)
    raise typer.Exit(code)


def _replay(letters: DeadLetters, wanted: Wanted, as_json: bool) -> int:
    from onefold.operate.dead_letters import replay

    progress = Progress()
    try:
        report = replay.replay(letters, wanted, progress=lambda done: progress.say(f"dead letters: {done:,}"))
    finally:
        progress.clear()
    lacking = {str(place): lacks for place, lacks in report.lacking.items()}
    failed = {str(place): why for place, why in report.failed.items()}
    if as_json:
        replayed = [str(letter.place) for letter in report.replayed]
        data = {"replayed": replayed, "replayed_before": len(report.before), "lacking": lacking, "failed": failed}
        typer.echo(json.dumps(data, indent=1))
    else:
        for place, why in (lacking | failed).items():
            typer.echo(common.wrapped(f"{place}: {why}", ""))
        typer.echo(
            f"{len(report.replayed):,} replayed, {len(report.before):,} had been replayed before, "
            f"{len(failed):,} cannot be."
        )
    return FAILED if failed else 0


def _rehearse(letters: DeadLetters, wanted: Wanted, as_json: bool) -> int:
    from onefold.operate.dead_letters import replay
    from onefold.operate.dead_letters.dry_run import rehearse

    report, would = replay.Report(), 0
    if as_json:
        typer.echo('{\n "would": {', nl=False)
    # One by one, as they come: there may be a million of them.
    for letter, what in rehearse(letters, replay.would_be_replayed(letters, wanted, report)):
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
    return FAILED if failed else 0
