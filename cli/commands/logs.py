"""`onefold logs`: what the services of the embedded stack have written."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Annotated

import typer

from onefold.operate.settings import load
from onefold.stack.log_files import Reader

# At once, for a person, and nothing to notice for the machine.
_LOOK_AGAIN_S = 0.2


def command(
    service: Annotated[str, typer.Argument(help="A name from `onefold status`; all of them by default.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines of each.")] = 20,
) -> None:
    """Show the last lines of the services' logs. Those of a stack that was stopped are there until the next one starts.

    Example: onefold logs sink-1 --follow
    """
    with closing(Reader(load().home, service)) as reader:
        width = 0 if service else max(map(len, reader.services))
        for name, line in reader.last(lines):
            _print(name, line, width)
        while follow:
            for name, line in reader.more():
                _print(name, line, width)
            time.sleep(_LOOK_AGAIN_S)


def _print(name: str, line: str, width: int) -> None:
    typer.echo(f"{name:{width}} | {line}" if width else line)
