"""`onefold logs`: the logs of the embedded stack's services."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from typing import Annotated

import typer

from onefold.config import logs
from onefold.config.settings import load
from onefold.stack.log_files import StackLogReader

# Short enough for a person, and cheap enough for the machine.
_LOOK_AGAIN_S = 0.2


def command(
    service: Annotated[str, typer.Argument(help="A name from `onefold status`; all of them by default.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines of each.")] = 20,
) -> None:
    """Show the last lines of the services' logs. The logs of a stopped stack stay until the next start.

    Onefold's services log JSON. On a terminal `logs` formats it for people, elsewhere it prints JSON; ONEFOLD_LOG_FORMAT=human
    or json overrides this. Lines of Kafka, PostgreSQL and Java are printed unchanged.

    Example: onefold logs sink-1 --follow
    """
    settings = load()
    people, colors = logs.for_people(settings.log_format), logs.in_color()
    with closing(StackLogReader(settings.home, service)) as reader:
        width = 0 if service else max(map(len, reader.services))

        def show(found: Iterable[tuple[str, str]]) -> None:
            for name, line in found:
                for part in logs.readable(line, colors) if people else [line]:
                    typer.echo(f"{name:{width}} | {part}" if width else part)

        show(reader.last(lines))
        while follow:
            show(reader.more())
            time.sleep(_LOOK_AGAIN_S)
