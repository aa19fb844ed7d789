"""`onefold test`: the test suite of this checkout, in tiers."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from onefold.places import TOP

# Unknown options are options of pytest.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
# Each process has a separate broker, database and Spark; four processes need 12 GB of memory.
PROCESSES_MAX = 4
# All tests of a file run in one process, so that shared fixtures are made once.
SHARED = ("--dist", "loadfile", "--no-loadscope-reorder")
# Options that need a single process, or choose a distribution.
OWN_CHOICE = ("--dist", "-s", "--pdb", "--trace", "--collect-only", "--co")
OWN_NUMBER = ("-n", "--numprocesses")


def command(
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of pytest, as they are.")] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Only tests that need no server but PostgreSQL: 5 minutes.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also containers, browsers, S3 and a fresh clone: up to an hour.")
    ] = False,
    mutants: Annotated[
        bool,
        typer.Option("--mutants", help="Instead: change the code; does a test fail? [--sample N] [--seed N] [FILE...]"),
    ] = False,
) -> None:
    """Run the tests of this checkout. The tests start a separate broker, database and Spark.

    -m broker, postgres, spark, docker or browser selects the tests that need the service; -m matrix tests that take hours.

    Example: onefold test -k campaigns
    """
    os.chdir(TOP)
    tier = [*(["--fast"] if fast else []), *(["--all"] if everything else [])]
    given = arguments or []
    # exec, so that pytest gets the terminal and sets the exit code.
    if mutants:
        os.execv(sys.executable, [sys.executable, "-m", "tests.support.mutants", *given])  # noqa: S606
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *tier, *processes(given), *given])  # noqa: S606


def processes(given: list[str]) -> list[str]:
    """Options of pytest-xdist: a process for each core, unless the arguments name a single file or test, or have such options.
    More processes are not faster, because the servers of each process keep a core busy.
    """
    if any(word.startswith(option) for word in given for option in OWN_CHOICE):
        return []
    if any(word.startswith(option) for word in given for option in OWN_NUMBER):
        return [*SHARED]
    named = [word for word in given if (TOP / word.partition("::")[0]).exists()]
    single = len(named) == 1 and (TOP / named[0].partition("::")[0]).is_file()
    number = min(os.cpu_count() or 1, PROCESSES_MAX)
    return [] if single or number == 1 else ["-n", str(number), *SHARED]
