"""`onefold dead-letters list`: the dead letters of a pipeline."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.cli.commands.dead_letters import common
from onefold.cli.commands.dead_letters.common import Key, Reason, Since, Topic, Until
from onefold.config.settings import load


def command(
    domain: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline, as runner.")],
    reason: Reason = "",
    since: Since = "",
    until: Until = "",
    key: Key = "",
    topic: Topic = "",
    waiting: Annotated[bool, typer.Option("--open", help="Only those that were neither replayed nor dropped.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Print this many, the newest. 0: all.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON, all of them.")] = False,
) -> None:
    """List a pipeline's dead letters, the newest last: position, time, key, reason.

    Example: onefold dead-letters list runner --reason "not JSON" --since 2h
    """
    from dataclasses import replace

    from onefold.operate.dead_letters.letters import DeadLetters
    from onefold.operate.dead_letters.parked import park_of

    wanted = replace(common.wanted(reason, since, until, key, topic), open=waiting)
    letters = DeadLetters(domain, load())
    # Without the values, because a million values would not fit into memory.
    found = sorted((one._replace(value=None) for one in letters.select(wanted)), key=lambda one: (one.at_ms, one.place))
    receipts = letters.receipts()
    known = {one.place: receipt for one in found if (receipt := letters.receipt(one.source, receipts)) is not None}
    if as_json:
        data = [common.as_data(one, known.get(one.place)) for one in found]
        typer.echo(json.dumps(data, indent=1))
        return
    shown = found[-limit:] if limit else found
    for one in shown:
        typer.echo(common.entry(one, str(known.get(one.place, ""))))
    more = f", the newest {len(shown):,} are shown (--limit 0: all)" if len(shown) < len(found) else ""
    dropped = sum(receipt.dropped is not None for receipt in known.values())
    replayed = len(known) - dropped
    told = f"{len(found):,} dead letters of {letters.name}, {replayed:,} replayed, {dropped:,} dropped{more}."
    held = [one for one in found if one.ticket is not None and one.place not in known]
    if held:
        keys = len({park_of(one) for one in held})
        rejected = sum(one.ticket is not None and one.ticket.refused for one in held)
        told += (
            f" {keys:,} parked keys: {rejected:,} rejected events, and {len(held) - rejected:,} that wait behind them."
        )
    typer.echo(common.wrapped(told, ""))
