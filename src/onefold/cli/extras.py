"""The extras that each verb requires, and the message for a missing package.

An extra is a group of packages in pyproject.toml, and in the metadata of the installed Onefold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec

from onefold import packages
from onefold.cli import plugins
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

#: The extras in the order of precedence: a message names the first extra with the missing package.
EXTRAS = ("processor", "sink", "stack", "registry", "s3")
#: The extras of each verb. A verb without a row needs none. A command of an installed package has NEEDS in the module.
NEEDS = {
    **dict.fromkeys(("demo", "up", "sql", "kafka", "kubernetes", "bench", "rebuild"), ("stack",)),
    **dict.fromkeys(
        ("status", "dashboard", "produce", "consume", "pause", "resume", "process", "work", "jobs", "chaos", "verify"),
        ("processor",),
    ),
    **dict.fromkeys(("dead-letters", "reset"), ("processor",)),
    "migrate": ("processor", "sink"),
    "sink": ("sink",),
}
#: Packages with an import name that differs from the package's name.
_IMPORTED_AS = {"attrs": "attr", "pyyaml": "yaml"}
_OF_AN_EXTRA = re.compile(r"""([\w-]+).*;.*\bextra == ['"]([\w-]+)['"]""")


def packages_of(extra: str) -> dict[str, str]:
    """The packages of an extra in Onefold's metadata, by import name."""
    found = map(_OF_AN_EXTRA.match, metadata.requires("onefold") or ())
    names = [one[1].lower() for one in found if one is not None and one[2] == extra]
    return {_IMPORTED_AS.get(name, name.replace("-", "_")): name for name in names}


def explain(verb: str, error: ModuleNotFoundError) -> UserError | None:
    """The message (exit code 2) for a missing module of an extra; None for other modules."""
    name = (error.name or "").partition(".")[0]
    needs = NEEDS.get(verb) or plugins.needs(verb)
    brought = {extra: packages_of(extra)[name] for extra in (*needs, *EXTRAS) if name in packages_of(extra)}
    if not brought:
        return None
    # All missing extras of the verb in one message, so that a single installation is enough.
    extra, package = next(iter(brought.items()))
    return _sentence(verb, package, ",".join(_lacking(needs)) or extra)


def require(verb: str, *extras: str) -> None:
    """Check that all packages of the extras are installed, before a service fails in the background.

    Raises UserError (exit code 2) with the incomplete extras and the first missing package.
    """
    if lacking := _lacking(extras):
        raise _sentence(verb, next(iter(lacking.values())), ",".join(lacking))


def _lacking(extras: Iterable[str]) -> dict[str, str]:
    """The first missing package of each incomplete extra, by extra."""
    return {
        extra: package
        for extra in extras
        for name, package in reversed(packages_of(extra).items())
        if not find_spec(name)
    }


def _sentence(verb: str, package: str, extras: str) -> UserError:
    who = f"onefold {verb}".rstrip()
    return UserError(
        Code.PACKAGE_MISSING,
        f"{who} needs {package}: {packages.install(extras, verb)}",
        "",
        USAGE,
    )
