"""Kill the own process at a named point, for tests and demonstrations of crashes: ONEFOLD_FAILPOINT="<name>:<n>"."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.processor.core import steps as processor_steps
from onefold.spark_sink.landing import steps as sink_steps

VARIABLE = "ONEFOLD_FAILPOINT"

Step = Callable[[str], None]


def from_environment(environ: Mapping[str, str] = os.environ) -> Step:
    """Return the step function for long-running code. The function kills the process with SIGKILL at the n-th hit of the named
    step, or does nothing without the variable.

    Raises UserError (exit code 2) for a value that is not "<name>:<n>", and for an unknown step. Every process accepts the
    steps of all processes, because `up` passes the same value to all.
    """
    wanted = environ.get(VARIABLE, "")
    if not wanted:
        return lambda name: None
    name, _, count = wanted.rpartition(":")
    if not name or not count.isascii() or not count.isdigit() or int(count) < 1:
        raise UserError(
            Code.SETTING_WRONG,
            f"{VARIABLE} is {wanted!r}: it should be <name>:<n>, as in before_commit:3",
            _known_steps(),
            USAGE,
        )
    if name not in steps():
        raise UserError(Code.SETTING_WRONG, f"{VARIABLE} is {wanted!r}: there is no step {name}", _known_steps(), USAGE)
    return _Countdown(name, int(count))


def steps() -> tuple[str, ...]:
    """Names of all steps: of a task, of state on disk, of a replica, and of the sink."""
    replicas = [step for step in processor_steps.REPLICA_STEPS if step not in processor_steps.STEPS]
    return (*processor_steps.STEPS, *processor_steps.DISK_STEPS, *replicas, *sink_steps.STEPS)


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
