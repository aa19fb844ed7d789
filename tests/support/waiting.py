"""Waiting for a condition, with a deadline: what tests do instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# The first looks follow closely, for what is a matter of milliseconds; a wait of seconds costs a look every 50 ms.
_LOOK_AGAIN_S = 0.002
_LOOK_AGAIN_MAX_S = 0.05
# A machine that others have too may stand still for that long, and no test is wrong for it. Who waits in vain waits longer, once.
PATIENCE_S = 60.0


def eventually(
    predicate: Callable[[], T], deadline_s: float, why: str, look_again_max_s: float = _LOOK_AGAIN_MAX_S
) -> T:
    """The first true value of `predicate`; fails with `why` when there is none in time: a state is asserted, and no bound in
    seconds, so `deadline_s` counts only above PATIENCE_S. A look that costs much is taken less often, `look_again_max_s` after
    the one before."""
    deadline_s = max(deadline_s, PATIENCE_S)
    deadline = time.monotonic() + deadline_s
    pause_s = _LOOK_AGAIN_S
    while True:
        if value := predicate():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s} s: {why}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, look_again_max_s)
