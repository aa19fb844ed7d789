"""Fault injection, by settings. Without the settings, a process does not load the code of fault injection."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from onefold.error_codes import Code

if TYPE_CHECKING:
    from onefold.config.settings import Settings

FAILPOINT = "ONEFOLD_FAILPOINT"


def of_processor(settings: Settings) -> Callable[[str], None]:
    """A function for the processor to call at each step of a task, with the step's name."""
    if not _wanted(settings.fail_state_pct):
        return lambda name: None
    from onefold.chaos import failpoint, injection
    from onefold.processor.core.errors import Abortable

    dice = injection.Dice("state", settings.fail_state_pct, settings)
    return dice.at("before_commit", failpoint.from_environment(), partial(Abortable, Code.TRANSACTION_LOST))


def of_sink(settings: Settings) -> tuple[Callable[[str], None], Callable[[], bool]]:
    """A function that the sink calls at each step of a batch, and a function that decides whether the tasks of a batch fail."""
    if not _wanted(settings.fail_map_pct, settings.fail_reduce_pct):
        return lambda name: None, lambda: False
    from onefold.chaos import failpoint, injection

    dice = injection.Dice("reduce", settings.fail_reduce_pct, settings)
    step = dice.at("sink.before_commit", failpoint.from_environment())
    return step, injection.Dice("map", settings.fail_map_pct, settings).fails


def _wanted(*percents: float) -> bool:
    return any(percents) or bool(os.environ.get(FAILPOINT))
