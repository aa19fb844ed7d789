"""`onefold test`: the whole test suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from onefold.operate.errors import UserError

# What follows is pytest's own.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
ROOT = Path(__file__).resolve().parents[2]


def command(
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of pytest, as they are.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Only tests that need no server.")] = False,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Instead: change code in a copy; does a test fail? [--sample N] [--seed N] [FILE...]"
        ),
    ] = False,
) -> None:
    """Run the tests of this checkout. They start a broker, a database and Spark of their own.

    -m broker, postgres, spark, docker or browser selects the tests that need it; -m matrix the ones that take hours.

    Example: onefold test -k campaigns
    """
    if not (ROOT / "tests").is_dir():
        raise UserError("the tests are not part of an installation", "Run ./onefold test in a checkout.")
    os.chdir(ROOT)
    # It takes this process's place, and with it the terminal and the exit code.
    if mutants:
        os.execv(sys.executable, [sys.executable, "-m", "tests.support.mutants", *(arguments or [])])  # noqa: S606
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *(["--fast"] if fast else []), *(arguments or [])])  # noqa: S606
