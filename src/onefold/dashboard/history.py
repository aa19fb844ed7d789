"""How fast a sum grows, pipeline by pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

# Long enough to be calm and short enough to show a restart; and below that a rate is a matter of luck.
ROLLING_S, LEAST_S = 20.0, 5.0


class History:
    """The sums of the last seconds."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, at: float, sums: Mapping[str, int]) -> None:
        """What the sums are at a time, in unix seconds."""
        self._kept.append((at, sums))
        while self._kept[0][0] < at - ROLLING_S:
            self._kept.popleft()

    def a_second(self, name: str) -> float | None:
        """The mean of the last 20 seconds, or of those that there are; None below five. Never below nothing: a pipeline that was
        started over begins again at 0.
        """
        found = [(at, sums[name]) for at, sums in self._kept if name in sums]
        if not found or name not in self._kept[-1][1] or found[-1][0] - found[0][0] < LEAST_S:
            return None
        (began, before), (at, now) = found[0], found[-1]
        return max(0.0, (now - before) / (at - began))
