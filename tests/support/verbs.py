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


def loaded(words: tuple[str, ...]) -> Any:
    """The command of these words, or the group."""
    found, package = None, main.COMMANDS
    for word in words:
        found = main.load(package, word)
        package = getattr(found, "package", "")
    return found


COMMANDS = tuple(commands())
