"""All commands as typed words."""

import itertools
import re
import shlex
from collections.abc import Iterator
from typing import Any

from onefold.cli import main


def commands(made: Any = None, *words: str) -> Iterator[tuple[str, ...]]:
    """Groups and their commands: ("up",), ("bench",), ("bench", "processor")."""
    made = made or main.build()
    for verb in made.commands:
        yield (*words, verb)
        inner = main.load(made.package, verb)
        if isinstance(inner, main.Verbs):
            yield from commands(inner, *words, verb)


def loaded(words: tuple[str, ...]) -> Any:
    """The command or group of these words."""
    found, package = None, main.COMMANDS
    for word in words:
        found = main.load(package, word)
        package = getattr(found, "package", "")
    return found


COMMANDS = tuple(commands())


def example(words: tuple[str, ...]) -> str:
    """Example at the end of a command's help."""
    return " ".join(str(loaded(words).help).partition("Example: ")[2].split())


def parsed(line: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Onefold commands in a command line, each with arguments, without leading variables and other programs."""
    for part in " ".join(shlex.quote(word) if word != "|" else word for word in shlex.split(line)).split(" | "):
        program, *rest = itertools.dropwhile(re.compile(r"[A-Z_]+=").match, shlex.split(part))
        if program == "onefold":
            words = max((found for found in COMMANDS if tuple(rest[: len(found)]) == found), key=len)
            yield words, rest[len(words) :]
