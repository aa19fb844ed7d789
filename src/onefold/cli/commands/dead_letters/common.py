"""Shared by the verbs of `onefold dead-letters`: options, filters, and the display of untrusted text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate.times import WRITTEN, time_ms
from onefold.printable import printable

if TYPE_CHECKING:
    from onefold.operate.dead_letters.letters import Letter, Wanted
    from onefold.operate.dead_letters.replay import Report
    from onefold.processor.io.replays import ReplayReceipt

Reason = Annotated[str, typer.Option(help="Only those whose reason has this text in it.")]
Since = Annotated[str, typer.Option(help=f"Only those from then on: {WRITTEN}.")]
Until = Annotated[str, typer.Option(help="Only those before then.")]
Key = Annotated[str, typer.Option(help="Only those of this key.")]
Topic = Annotated[str, typer.Option(help="Only those of this input.")]
Places = Annotated[
    list[str] | None, typer.Argument(help="TOPIC/PARTITION/OFFSET of dead letters, or of their sources.")
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")]

WIDTH_MAX = 120
# Narrower lines are unreadable.
_WIDTH_MIN = 40


def check_chosen(*chosen: object) -> None:
    """Raise UserError (exit code 2) if no option selects dead letters."""
    if not any(chosen):
        raise UserError(
            Code.ARGUMENT_WRONG,
            "it is not said which",
            "Name places, filter with --reason, --key and so on, or say --all.",
            USAGE,
        )


def wanted(reason: str, since: str, until: str, key: str, topic: str, places: Sequence[str] = ()) -> Wanted:
    """The filter by the options. Raises UserError (exit code 2) for an invalid time or place."""
    from onefold.operate.dead_letters.letters import Wanted, place

    now = datetime.now(UTC)
    return Wanted(
        reason=reason,
        since_ms=time_ms(since, now) if since else 0,
        until_ms=time_ms(until, now) if until else None,
        key=key or None,
        topic=topic or None,
        places=frozenset(map(place, places)),
    )


def key_text(key: bytes | None) -> str:
    """A key as text for people."""
    return "no key" if key is None else f"key {printable(key.decode(errors='backslashreplace'))}"


def wrapped(text: str, indent: str = "    ", broken: bool = False) -> str:
    """The text in lines no wider than the terminal. Without `broken`, long words stay whole, for copying."""
    width = max(_WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size().columns))
    lines = textwrap.wrap(printable(text), width - len(indent), break_long_words=broken, break_on_hyphens=False)
    return "\n".join(indent + line for line in lines)


def entry(letter: Letter, remark: str) -> str:
    """A dead letter for people: place, time, key and remark, then the reason."""
    key = key_text(letter.key)
    head = f"{letter.place}  {letter.at:%Y-%m-%d %H:%M:%S}  {key if len(key) < WIDTH_MAX else f'{key[:40]}…'}"
    first = wrapped(f"{head}  {remark}".rstrip(), "")
    return f"{first}\n{wrapped(letter.reason)}"


def tell_parked(report: Report, dry_run: bool = False) -> None:
    """Print the results for parked records, which wait behind rejected records of the same key."""
    if report.followed:
        typer.echo(f"{len(report.followed):,} that wait behind them {'would be' if dry_run else 'were'} replayed.")
    if report.stalled:
        typer.echo(wrapped(report.stalled, ""))


def as_data(letter: Letter, receipt: ReplayReceipt | None) -> dict[str, Any]:
    """A dead letter for JSON output, without the value."""
    dropped = receipt.dropped if receipt is not None else None
    return {
        "place": str(letter.place),
        "source": str(letter.source) if letter.source else None,
        "at": letter.at.isoformat(),
        "key": None if letter.key is None else letter.key.decode(errors="backslashreplace"),
        "reason": letter.reason,
        "bytes": letter.length,
        "replayed": receipt is not None and dropped is None,
        "dropped": None if dropped is None else dropped._asdict(),
        "parked": None if letter.ticket is None else letter.ticket._asdict(),
    }
