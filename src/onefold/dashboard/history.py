"""Growth rates of sums, by pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

# Long enough for a steady value, short enough to show a restart. Below LEAST_S a rate is noise.
ROLLING_S, LEAST_S = 20.0, 5.0


class RecentSums:
    """Sums of the last seconds."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, at: float, sums: Mapping[str, int]) -> None:
        """Add the sums at a time in unix seconds."""
        self._kept.append((at, sums))
        while self._kept[0][0] < at - ROLLING_S:
            self._kept.popleft()

    def a_second(self, name: str) -> float | None:
        """Mean growth per second over the last 20 seconds, or over a shorter history; None below five seconds of history. At
        least 0, because a reset pipeline begins again at 0."""
        found = [(at, sums[name]) for at, sums in self._kept if name in sums]
        if not found or name not in self._kept[-1][1] or found[-1][0] - found[0][0] < LEAST_S:
            return None
        (began, before), (at, now) = found[0], found[-1]
        return max(0.0, (now - before) / (at - began))
