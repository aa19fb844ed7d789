"""`onefold explain`: what made a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold import exit_codes
from onefold.error_codes import Code
from onefold.operate.errors import UserError
from onefold.operate.reading import RECORDS_MAX
from onefold.operate.settings import load
from onefold.operate.values import moment, printable

if TYPE_CHECKING:
    from onefold.operate.explained import Cause, Explanation, Shown, Step
    from onefold.operate.transactions import Folded

# Of a value, on a terminal: the whole of it is in --json.
_VALUE_CHARACTERS_MAX = 400
_WIDTH = 14
# Of the events that one record stands for.
_OTHERS_MAX = 8


def command(
    table: Annotated[str, typer.Argument(help="The table with its schema, as campaigns.totals.")],
    key: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="The columns of the row's key. A column that is left out is NULL."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many records of the row's history to show.")] = 10,
    records: Annotated[
        int, typer.Option(min=1, help="How many records to search, backwards from the row's own record.")
    ] = RECORDS_MAX,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, without truncation.")] = False,
) -> None:
    """Show where a row comes from: its output record, the input record that caused it, the processor's transaction, the
    sink's batch, and the records behind each column.

    Exit code 1: the table has no such row.

    Example: onefold explain campaigns.totals id=1
    """
    import psycopg  # these import clients of Postgres and Kafka, which `--help` does not need

    from onefold.operate import explain

    settings = load()
    dsn = settings.postgres()
    try:
        found = explain.explain(settings, dsn, table, given(key or ()), limit=limit, records_max=records)
    except psycopg.Error as error:
        raise explain.problem_of(error) from None
    typer.echo(json.dumps(found.as_data(), indent=1) if as_json else "\n".join(_text(found)))
    raise typer.Exit(exit_codes.OK if found.row is not None else exit_codes.FAILED)


def given(words: Sequence[str]) -> dict[str, str]:
    """The key that a user wrote. Raises UserError (exit code 2) for a word that is no KEY=VALUE."""
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
        how = told.columns.get(name)
        yield f"  {name:{_WIDTH}} {printable(_cell(value))}" + (f"    <- {printable(how)}" if how else "")
    yield from (_line("note", note) for note in told.notes)
    if told.output is not None:
        yield ""
        yield from _record("output record", told.output)
    for cause in told.causes:
        yield from _record(cause.how, cause.record)
    if told.folded is not None:
        yield from _folded(told.folded)
    if told.batch is not None:
        yield _line("written", _batch(told))
    if told.accumulated:
        names = ", ".join(told.accumulated)
        yield _line("merged", f"{names}: made of what the row had before too; here are the last records of the row")
    if told.history:
        yield ""
        yield from _history(told)
    yield ""
    yield f"read {told.records_read:,} records, {told.bytes_read:,} bytes, in {told.seconds:.2f} s"


def _line(name: str, text: str) -> str:
    return f"{name:{_WIDTH}} {printable(text)}"


def _cell(value: str | None) -> str:
    return "NULL" if value is None else value


def _record(name: str, shown: Shown) -> Iterator[str]:
    if shown.at_ms is None:
        yield _line(name, f"{shown.where}: {shown.problem}")
        return
    yield _line(name, f"{shown.where}, {moment(shown.at_ms)}, key {_cell(shown.key)}")
    if shown.trace is not None:
        yield _line("", f"traced as {shown.trace}")
    if shown.problem is not None:
        yield _line("", f"cannot be decoded: {shown.problem}")
    yield _line("", _cut(_cell(shown.raw) if shown.problem is not None else _json(shown.value)))


def _folded(folded: Folded) -> Iterator[str]:
    yield _line("processed", _by(folded))
    if folded.state is not None:
        yield _line("", f"the state after it, at {folded.state}: {folded.state_command}")


def _by(folded: Folded) -> str:
    number = f"transaction {folded.number:,} of task {folded.task}"
    which = f"by {number}" if folded.exact else f"by {number}, or one before it that compaction has removed"
    return f"{which}: {folded.at}, {moment(folded.at_ms)}"


def _batch(told: Explanation) -> str:
    batch = told.batch
    assert batch is not None, "it is asked for where there is one"
    if batch.exact and batch.writer is not None:
        return f"by {batch.writer} at {batch.at}"
    when = f"at {batch.at}" if batch.exact else "in an earlier transaction"
    last = f"by {batch.last_writer} at {batch.last_at}, up to offset {batch.next_offset:,}"
    return f"{when}; the last batch of the partition was {last}"


def _history(told: Explanation) -> Iterator[str]:
    by = f" with the same {', '.join(told.looked.by)}" if told.looked and told.looked.by else ""
    yield f"records{by}, the newest first:"
    for step in told.history:
        yield printable(f"  {step.output.where}, {moment(step.output.at_ms)}{_because(step.causes)}")
        yield from (printable(f"      {line}") for line in _transactions(step))
        if others := _others(step):
            yield printable(_cut(others))
        if step.changed is None:
            first = step is told.history[-1] and _first(told)
            yield "      the first of them" if first else "      the record before it was not found, or cannot be read"
        elif not step.changed:
            yield "      says the same as the one before it"
        for name, (before, after) in (step.changed or {}).items():
            yield printable(f"      {name}: {_cut(_json(before))} -> {_cut(_json(after))}")
    if told.looked is not None:
        rest = "where it begins" if told.looked.whole else "there may be older ones, --records looks further"
        yield f"looked back to offset {told.looked.start:,} of {told.looked.where}: {rest}"


def _transactions(step: Step) -> Iterator[str]:
    """The processor's, and the sink's."""
    if step.folded is not None:
        yield f"processed {_by(step.folded)}"
    if step.landed is not None:
        batch = step.landed
        yield f"written by {batch.writer} at {batch.at}, with offsets from {batch.first_offset:,} to {batch.next_offset - 1:,}"
    yield from step.unknown


def _first(told: Explanation) -> bool:
    return told.looked is not None and told.looked.whole


def _others(step: Step) -> str:
    """What one record stands for besides the event that it names."""
    if not step.others and step.others_whole:
        return ""
    more = "" if step.others_whole else " and perhaps more"
    return f"      and for {len(step.others)}{more} events of its key before that one: {', '.join(step.others[:_OTHERS_MAX])}"


def _because(causes: Sequence[Cause]) -> str:
    return "".join(f", {cause.how} {cause.record.where}" for cause in causes)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_CHARACTERS_MAX else f"{text[:_VALUE_CHARACTERS_MAX]}… (--json has all of it)"
