"""What a verb needs beyond what the wheel without extras brings, and the sentence for what is not there.

An extra is a group of packages in pyproject.toml, and so in the metadata of the installed Onefold.
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

#: In the order in which a sentence names the first that brings a package.
EXTRAS = ("processor", "sink", "stack", "registry", "s3")
#: What each verb works with. A verb without a row needs none, and a command of an installed package has a list of its own.
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
#: Where the name to import is not the name to install.
_IMPORTED_AS = {"attrs": "attr", "pyyaml": "yaml"}
_OF_AN_EXTRA = re.compile(r"""([\w-]+).*;.*\bextra == ['"]([\w-]+)['"]""")


def packages_of(extra: str) -> dict[str, str]:
    """The packages of an extra by the names that our code imports, as Onefold's metadata have them."""
    found = map(_OF_AN_EXTRA.match, metadata.requires("onefold") or ())
    names = [one[1].lower() for one in found if one is not None and one[2] == extra]
    return {_IMPORTED_AS.get(name, name.replace("-", "_")): name for name in names}


def explain(verb: str, error: ModuleNotFoundError) -> UserError | None:
    """The sentence (exit code 2) for a module that an extra would have brought; None when none would."""
    name = (error.name or "").partition(".")[0]
    needs = NEEDS.get(verb) or plugins.needs(verb)
    brought = {extra: packages_of(extra)[name] for extra in (*needs, *EXTRAS) if name in packages_of(extra)}
    if not brought:
        return None
    # All that the verb will ask for, at once: nobody wants to install one thing after the other.
    extra, package = next(iter(brought.items()))
    return _sentence(verb, package, ",".join(_lacking(needs)) or extra)


def require(verb: str, *extras: str) -> None:
    """Look for all that these extras bring before anything is begun: a service would fail where nobody is looking.

    Raises UserError (exit code 2) that names the extras with something missing, and what.
    """
    if lacking := _lacking(extras):
        raise _sentence(verb, next(iter(lacking.values())), ",".join(lacking))


def _lacking(extras: Iterable[str]) -> dict[str, str]:
    """Of the extras that are not here as a whole, the first package that is missing."""
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
