"""`onefold explain`: the origin of a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold import exit_codes
from onefold.config.errors import UserError, of_postgres
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.operate.record_reader import RECORDS_MAX
from onefold.operate.shown_values import moment
from onefold.printable import printable

if TYPE_CHECKING:
    from onefold.operate.explain.explanation import Explanation, OutputStep, SearchedRange, ShownRecord

# Displayed characters of a value; --json prints the whole value.
_VALUE_CHARACTERS_MAX = 400
_WIDTH = 14


def command(
    table: Annotated[str, typer.Argument(help="The table with its schema, as campaigns.totals.")],
    key: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="The columns of the row's key. A column that is left out is NULL."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of the row's last records to show.")] = 10,
    records: Annotated[
        int, typer.Option(min=1, help="How many records to search, backwards from the row's own record.")
    ] = RECORDS_MAX,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, without truncation.")] = False,
) -> None:
    """Show where a row comes from: its output record, the input record that caused it, the processor's transaction, the
    sink's batch, and the last records of the row.

    Exit code 1: the table has no such row.

    Example: onefold explain campaigns.totals id=1
    """
    import psycopg  # the imports load the clients of PostgreSQL and Kafka, which `--help` does not need

    from onefold.operate.explain import explain

    settings = load()
    dsn = settings.postgres()
    try:
        found = explain.explain(settings, dsn, table, given(key or ()), limit=limit, records_max=records)
    except psycopg.Error as error:
        raise of_postgres(error, "the database does not answer") from None
    typer.echo(json.dumps(found.as_data(), indent=1) if as_json else "\n".join(_text(found)))
    raise typer.Exit(exit_codes.OK if found.row is not None else exit_codes.FAILED)


def given(words: Sequence[str]) -> dict[str, str]:
    """The key by words KEY=VALUE. Raises UserError (exit code 2) for a malformed word."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals or "\0" in value:
            raise UserError(
                Code.ARGUMENT_WRONG, f"{word!r} is no part of a key", "Write KEY=VALUE, as in id=1.", exit_codes.USAGE
            )
        found[name] = value
    return found


def _text(told: Explanation) -> Iterator[str]:
    yield printable(" ".join((told.table, *(f"{name}={_cell(value)}" for name, value in told.key.items()))))
    for name, value in (told.row or {}).items():
        yield f"  {name:{_WIDTH}} {printable(_cell(value))}"
    yield from (_line("note", note) for note in told.notes)
    if told.output is not None:
        yield ""
        yield from _record("output record", told.output)
    for cause in told.causes:
        yield from _record(cause.how, cause.record)
    if (folded := told.folded) is not None:
        which = "" if folded.exact else ", or one before it that compaction has removed"
        number = f"by transaction {folded.number:,} of task {folded.task}{which}"
        yield _line("processed", f"{number}: {folded.at}, {moment(folded.at_ms)}")
        if folded.state_command:
            yield _line("", f"the state after it: {folded.state_command}")
    if (batch := told.batch) is not None:
        span = f"with offsets from {batch.first_offset:,} to {batch.next_offset - 1:,}"
        yield _line("written", f"by {batch.writer} at {batch.at}, {span}")
    if told.looked is not None:
        yield ""
        yield from _history(told.history, told.looked)
    yield ""
    yield f"read {told.records_read:,} records, {told.bytes_read:,} bytes, in {told.seconds:.2f} s"


def _line(name: str, text: str) -> str:
    return f"{name:{_WIDTH}} {printable(text)}"


def _cell(value: str | None) -> str:
    return "NULL" if value is None else value


def _record(name: str, shown: ShownRecord) -> Iterator[str]:
    if shown.at_ms is None:
        yield _line(name, f"{shown.where}: {shown.problem}")
        return
    yield _line(name, f"{shown.where}, {moment(shown.at_ms)}, key {_cell(shown.key)}")
    if shown.trace is not None:
        yield _line("", f"traced as {shown.trace}")
    if shown.problem is not None:
        yield _line("", f"cannot be decoded: {shown.problem}")
    yield _line("", _cut(_cell(shown.raw) if shown.problem is not None else _json(shown.value)))


def _history(steps: Sequence[OutputStep], looked: SearchedRange) -> Iterator[str]:
    by = f" with the same {', '.join(looked.by)}" if looked.by else ""
    yield f"records{by}, the newest first:"
    for step in steps:
        causes = "".join(f", {cause.how} {cause.record.where}" for cause in step.causes)
        yield printable(f"  {step.output.where}, {moment(step.output.at_ms)}{causes}")
        if step.changed is None:
            first = step is steps[-1] and looked.whole
            yield "      the first of them" if first else "      the record before it was not found, or cannot be read"
        elif not step.changed:
            yield "      the same as the one before it"
        for name, (before, after) in (step.changed or {}).items():
            yield printable(f"      {name}: {_cut(_json(before))} -> {_cut(_json(after))}")
    rest = "where it begins" if looked.whole else "there may be older ones, --records looks further"
    yield f"looked back to offset {looked.start:,} of {looked.where}: {rest}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_CHARACTERS_MAX else f"{text[:_VALUE_CHARACTERS_MAX]}… (--json has all of it)"
