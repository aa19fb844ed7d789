"""`onefold consume`: the records of a topic, decoded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from onefold.config.settings import load
from onefold.operate.times import WRITTEN, time_ms
from onefold.printable import printable


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic of a pipeline, as runner.stats.")],
    key: Annotated[
        str | None, typer.Option(help="Only records with this Kafka key, or of this key of a state.")
    ] = None,
    since: Annotated[str | None, typer.Option(help=f"Only records from then on: {WRITTEN}.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Print this many, the newest. 0: all.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records until Ctrl-C.")] = False,
) -> None:
    """Print the committed records of a topic, decoded by the schema: a line of JSON each. An undecodable record has the bytes
    in "raw", and the reason in "problem".

    Example: onefold consume runner.stats --since 1h --limit 5
    """
    from onefold.operate import consuming  # imports Kafka's client, which `--help` does not need

    since_ms = 0 if since is None else time_ms(since, datetime.now(UTC))
    for record in consuming.consume(load(), topic, key=key, since_ms=since_ms, limit=limit, follow=follow):
        typer.echo(printable(json.dumps(record, ensure_ascii=False)))
