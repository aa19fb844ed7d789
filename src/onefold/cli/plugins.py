"""Commands of installed packages: the entry points of the group `onefold.commands`.

The name of an entry point is the verb. The value is a module as in cli/commands: with a function `command`, or a package with
HELP, VERBS and a module for each verb. NEEDS of the module lists the extras of Onefold that the verb requires.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from onefold.cli.names import ALIASES, FORMER
from onefold.config.errors import UserError
from onefold.error_codes import Code, first_line
from onefold.exit_codes import USAGE

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "onefold.commands"
OURS = "onefold"


def found() -> dict[str, EntryPoint]:
    """The entry points by verb, without aliases and names of earlier releases. Of two packages with the same verb, Onefold has
    precedence, else the first package by name.
    """
    from importlib import metadata  # slow to import, and most commands do not need it

    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: (_package(point) != OURS, _package(point)))
    taken = {*ALIASES, *(words[0] for words in FORMER)}
    return {point.name: point for point in reversed(points) if point.name not in taken}


def lines() -> dict[str, str]:
    """A line of help by verb, without an import of the modules."""
    return {verb: f"A command of the package {_package(point)}." for verb, point in sorted(found().items())}


def needs(verb: str) -> tuple[str, ...]:
    """The extras of Onefold that a loaded command requires; () for other commands."""
    point = found().get(verb)
    return getattr(sys.modules.get(point.value), "NEEDS", ()) if point is not None else ()


def load(name: str, verb: str) -> ModuleType:
    """The module of a command, or of a verb of a group. Raises UserError (exit code 2) if the module is unusable."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a foreign module may raise any exception
        raise _unusable(name, verb, f"{type(error).__name__}: {first_line(error)}") from None
    if not (hasattr(module, "VERBS") and hasattr(module, "HELP")) and not hasattr(module, "command"):
        raise _unusable(name, verb, "it has neither a function `command` nor HELP and VERBS")
    return module


def _unusable(name: str, verb: str, why: str) -> UserError:
    return UserError(
        Code.COMMAND_WRONG,
        f"the command {verb} cannot be used: {name}: {why}",
        "Correct the package that brings it, or uninstall the package. All other commands work.",
        USAGE,
    )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
