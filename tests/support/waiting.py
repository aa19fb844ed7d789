"""Waiting for a condition with a deadline, instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# First look often, for waits of milliseconds; longer waits look every 50 ms.
_LOOK_AGAIN_S = 0.002
_LOOK_AGAIN_MAX_S = 0.05
# Minimum deadline, because a shared machine may stall for this long without a fault of the test.
PATIENCE_S = 60.0


def eventually(
    predicate: Callable[[], T], deadline_s: float, why: str, look_again_max_s: float = _LOOK_AGAIN_MAX_S
) -> T:
    """Return the first true value of `predicate`; fail with `why` after the deadline.

    `deadline_s` counts only above PATIENCE_S, because the test asserts a state, not a time. `look_again_max_s`: longest
    pause between looks, larger for an expensive predicate.
    """
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
