"""Kills this very process at a named point, for tests and demonstrations of crashes: ONEFOLD_FAILPOINT="<name>:<n>"."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from console.errors import USAGE, UserError

VARIABLE = "ONEFOLD_FAILPOINT"

Step = Callable[[str], None]


def from_environment(environ: Mapping[str, str] = os.environ) -> Step:
    """The step function for long-running code: does nothing, or ends the process with kill -9 at the n-th hit of one
    name.

    Raises UserError (exit code 2) for a value that is not "<name>:<n>".
    """
    wanted = environ.get(VARIABLE, "")
    if not wanted:
        return lambda name: None
    name, _, count = wanted.rpartition(":")
    if not name or not count.isascii() or not count.isdigit() or int(count) < 1:
        raise UserError(f"{VARIABLE} is {wanted!r}: it should be <name>:<n>, as in before-commit:3", exit_code=USAGE)
    return _Countdown(name, int(count))


class _Countdown:
    def __init__(self, name: str, hits: int) -> None:
        self._name = name
        self._hits = hits

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._hits -= 1
            if self._hits == 0:
                os.kill(os.getpid(), signal.SIGKILL)
