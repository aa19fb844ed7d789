"""Wait for a condition that offers no event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float, every_s: float) -> T:
    """Ask every `every_s` seconds; return the first true answer, or the answer after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(every_s)
    return found
