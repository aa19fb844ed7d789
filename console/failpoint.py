"""Kills this very process at a named point, for tests and demonstrations of crashes: ONEFOLD_FAILPOINT="<name>:<n>"."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from console.errors import USAGE, UserError

VARIABLE = "ONEFOLD_FAILPOINT"

Step = Callable[[str], None]

# The sink's steps, in the order in which it takes them. The processor's are where its own tests count through them; a test
# compares both with the code.
SINK_STEPS = (
    "sink.before_cas",
    "sink.after_cas",
    "sink.before_copy",
    "sink.after_copy",
    "sink.before_merge",
    "sink.after_merge",
    "sink.before_commit",
    "sink.after_commit",
)


def from_environment(environ: Mapping[str, str] = os.environ) -> Step:
    """The step function for long-running code: does nothing, or ends the process with kill -9 at the n-th hit of one
    name.

    Raises UserError (exit code 2) for a value that is not "<name>:<n>", and for a name that no code ever reaches. Every
    process knows the names of all, since all that `up` starts are given the same one.
    """
    wanted = environ.get(VARIABLE, "")
    if not wanted:
        return lambda name: None
    name, _, count = wanted.rpartition(":")
    if not name or not count.isascii() or not count.isdigit() or int(count) < 1:
        raise UserError(
            f"{VARIABLE} is {wanted!r}: it should be <name>:<n>, as in before_commit:3", _known_steps(), USAGE
        )
    if name not in steps():
        raise UserError(f"{VARIABLE} is {wanted!r}: there is no step {name}", _known_steps(), USAGE)
    return _Countdown(name, int(count))


def steps() -> tuple[str, ...]:
    """The names of all steps: the processor's, then the sink's."""
    from processor.testing.driver import STEPS  # with a codec and a log, which nobody needs who sets no failpoint

    return (*STEPS, *SINK_STEPS)


def _known_steps() -> str:
    return f"Steps are: {', '.join(steps())}."


class _Countdown:
    def __init__(self, name: str, hits: int) -> None:
        self._name = name
        self._hits = hits

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._hits -= 1
            if self._hits == 0:
                os.kill(os.getpid(), signal.SIGKILL)
