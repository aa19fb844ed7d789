"""How fast a sum grows, pipeline by pipeline, for the minutes that somebody has looked: of what no table has a history."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from onefold.dashboard.flow import ROLLING_SLOTS, SLOT_S, SLOTS


class History:
    """Sums of the last five minutes, one for each five seconds."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SLOTS + ROLLING_SLOTS + 1)
        self._last: tuple[float, Mapping[str, int]] | None = None

    def add(self, at: float, sums: Mapping[str, int]) -> None:
        """What the sums are at a time, in unix seconds. One that is not later than the last is left out."""
        if self._last is not None and at <= self._last[0]:
            return
        if not self._kept or at // SLOT_S > self._kept[-1][0] // SLOT_S:
            self._kept.append((at, sums))
        self._last = at, sums

    def a_second(self, name: str) -> float | None:
        """The mean of the last 20 seconds, or of those that there are; None below five."""
        if self._last is None:
            return None
        now, sums = self._last
        for at, before in self._kept:
            if at >= now - SLOT_S * ROLLING_SLOTS and name in before and name in sums:
                return _rate(sums[name] - before[name], now - at) if now - at >= SLOT_S else None
        return None

    def points(self, name: str) -> tuple[Sequence[int], Sequence[float | None]]:
        """(unix seconds, how much came a second up to there since the point before)."""
        times, rates = [], []
        kept = [(at, sums.get(name)) for at, sums in self._kept]
        for (before_at, before), (at, now) in pairwise(kept):
            times.append(int(at))
            rates.append(None if now is None or before is None else _rate(now - before, at - before_at))
        return times, rates


def _rate(amount: int, seconds: float) -> float:
    """Never below nothing: a pipeline that was started over begins again at 0."""
    return max(0.0, amount / seconds)
