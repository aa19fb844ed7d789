"""`onefold lint`: types, imports, packages, style and documents of this checkout."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from onefold import places


def command(
    checks: Annotated[
        list[str] | None, typer.Argument(help="types, site, rules, imports, packages, style, format; default: all.")
    ] = None,
) -> None:
    """Check this checkout's code and documents without a test: a minute the first time, then seconds.

    Example: onefold lint imports style
    """
    os.chdir(places.TOP)
    # exec, so that the lint gets the terminal and sets the exit code.
    os.execv(sys.executable, [sys.executable, "-m", "tests.lint", *(checks or [])])  # noqa: S606
