"""Every command that there is, as the words that a user writes."""

from collections.abc import Iterator
from typing import Any

from onefold.cli import main


def commands(made: Any = None, *words: str) -> Iterator[tuple[str, ...]]:
    """Groups and what is in them: ("up",), ("bench",), ("bench", "processor")."""
    made = made or main.build()
    for verb in made.commands:
        yield (*words, verb)
        inner = main.load(made.package, verb)
        if isinstance(inner, main.Verbs):
            yield from commands(inner, *words, verb)


COMMANDS = tuple(commands())
