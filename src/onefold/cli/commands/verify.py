"""`onefold verify`: the verdict of the verifier on a pipeline."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onefold import exit_codes
from onefold.cli.console import console
from onefold.config.errors import UserError
from onefold.config.settings import load
from onefold.operate import pipelines
from onefold.operate.progress import StageProgress
from onefold.printable import printable
from onefold.verify.verdict import INVALID, KINDS, UNKNOWN, VALID, Finding, Verdict

# Enough to see the cause: a million missing rows have one cause.
FINDINGS_SHOWN = 20
# Partitions of a topic; --json prints all.
PLACES_SHOWN = 4
_STYLES = {VALID: "bold green", INVALID: "bold red", UNKNOWN: "bold yellow"}


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the pipeline to drain.")] = 60.0,
    show_all: Annotated[bool, typer.Option("--all", help="Print every mismatch, not only the first ones.")] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Read the topics from offset 0, not from the last checkpoint.")
    ] = False,
    states: Annotated[
        bool,
        typer.Option(
            "--states", help="Process all input records again, and compare the state of each key with the changelog."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole verdict as JSON.")] = False,
) -> None:
    """Recompute a pipeline from its input topics with the pipeline's model, and compare every row and every dead letter.
    Reading resumes at the last checkpoint; every row is compared each time. The dashboard shows the last verdict.

    Exit code 0: valid. 1: invalid, with each mismatch. 2: unknown, with the reason.

    Example: onefold verify runner --timeout 30
    """
    verdict, dsn = judge(domain, timeout, from_start, states)
    if as_json:
        typer.echo(json.dumps(verdict.as_data(), default=str, indent=1))
    else:
        render(verdict, console(), None if show_all else FINDINGS_SHOWN)
    sys.stdout.flush()  # a reader gets the verdict before `keep`, which may fail
    from onefold.operate import verdicts  # imports the clients of PostgreSQL and Kafka, which `--help` does not need

    for problem in (verdicts.keep(verdict, dsn), verdict.note):
        if problem:
            typer.echo(problem, err=True)
    raise typer.Exit(verdict.exit_code)


def judge(domain: str, timeout_s: float, from_start: bool, states: bool) -> tuple[Verdict, str]:
    """The verdict on a pipeline of the running stack, or of the configured servers, and the DSN of the database."""
    try:
        settings = load()
        (name,) = pipelines.checked([domain])
        settings.client()  # raises UserError without a Kafka
        dsn = settings.postgres()
    except UserError as error:
        raise UserError(error.code, error.message, error.hint, exit_codes.UNKNOWN) from None  # the verdict is unknown
    from onefold.operate import verdicts  # not needed for `--help`

    progress = StageProgress()
    try:
        verdict = verdicts.ask(
            settings,
            name,
            timeout_s=timeout_s,
            progress=lambda what, records: progress.say(f"{what}: {records:,} records"),
            checkpoints=settings.checkpoints(),
            from_start=from_start,
            states=states,
        )
    finally:
        progress.clear()
    return verdict, dsn


def render(verdict: Verdict, out: Console, shown: int | None = FINDINGS_SHOWN) -> None:
    """Print a verdict for people: the comparisons, the mismatches, and a summary."""
    if verdict.checks:
        out.print(_checks(verdict))
    if verdict.findings:
        out.print(_summary(verdict))
        for finding in verdict.findings[:shown]:
            _print_finding(finding, out)
        if shown is not None and len(verdict.findings) > shown:
            out.print(f"{len(verdict.findings) - shown:,} more; --all prints them, --json too.")
    out.print(Text(f"{verdict.domain}: {verdict.outcome}", _STYLES[verdict.outcome]), "-", Text(_sentence(verdict)))


def _sentence(verdict: Verdict) -> str:
    counts, reason = verdict.counts, printable(verdict.reason)
    if not counts:
        return f"{reason}."
    records = (
        f"{counts['records']:,} input records ({counts['accepted']:,} accepted, {counts['ignored']:,} without effect,"
        f" {counts['forwarded']:,} repartitioned, {counts['dead']:,} dead letters), {verdict.seconds:.1f} s"
    )
    told = f"{reason}.\n{records}."
    if verdict.proved:
        told += f"\n{verdict.proved:,} records of all topics were not read again: the verdict of {verdict.proved_at[:19]}Z has."
    states = "" if verdict.states is None else f", and the states of {verdict.states:,} keys"
    told += f"\nCompared: {verdict.outputs:,} output records and {verdict.rows:,} rows{states}."
    if verdict.begins:
        told += f"\nRead: {'; '.join(_read(verdict))}."
    if verdict.not_judged:
        told += f"\nNot judged: {printable('; '.join(_not_judged(verdict)))}."
    return told


def _read(verdict: Verdict) -> Iterator[str]:
    """The range of read offsets of each topic."""
    for topic, begins in verdict.begins.items():
        ends = verdict.offsets.get(topic, {})
        places = [f"/{at} {begin:,} to {ends.get(at, begin):,}" for at, begin in begins.items()]
        more = f", {len(places) - PLACES_SHOWN:,} more partitions" * (len(places) > PLACES_SHOWN)
        yield f"{topic}{', '.join(places[:PLACES_SHOWN])}{more}"


def _not_judged(verdict: Verdict) -> Iterator[str]:
    for name, why in verdict.not_judged.items():
        yield f"{name} ({why or 'the model does not say why'})"


def _checks(verdict: Verdict) -> Table:
    table = Table(title=f"{verdict.domain}: recomputed from the input topics", title_justify="left", title_style="bold")
    table.add_column("compared")
    table.add_column("should be", justify="right")
    table.add_column("are", justify="right")
    for check in verdict.checks:
        style = "" if check.expected == check.found else "red"
        table.add_row(check.what, f"{check.expected:,}", f"{check.found:,}", style=style)
    return table


def _summary(verdict: Verdict) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for kind, count in verdict.kinds().items():
        table.add_row(f"{count:,} x", kind, KINDS[kind])
    return table


def _print_finding(finding: Finding, out: Console) -> None:
    """Print a mismatch. Only the terminal wraps the lines, so that copied text has no added line ends."""
    key = ", ".join(f"{name} {value}" for name, value in finding.key.items())
    lines = [" - ".join(part for part in (finding.kind, finding.where, key) if part), _what(finding)]
    lines += [f"output record {finding.output}"] if finding.output else []
    lines += [f"input record {finding.source}"] if finding.source else []
    for number, line in enumerate(filter(None, lines)):
        # Values are untrusted: printed as text, without rich markup and control characters.
        out.print(Text(("  " if number else "") + printable(line)), soft_wrap=True)


def _what(finding: Finding) -> str:
    wrong = [
        f"{name}: {_as_text(found)}, should be {_as_text(expected)}"
        for name, (expected, found) in finding.columns.items()
    ]
    return "; ".join([*wrong, *([finding.text] if finding.text else [])])


def _as_text(value: Any) -> str:
    return "NULL" if value is None else str(value)
