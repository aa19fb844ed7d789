"""Detect stalled backlogs from outside, by repeated queries.

Each service reports its own progress, but a missing service cannot report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Tolerance between two computed send times of the same record. The time follows from an age, and a busy machine adds delay.
_SAME_S = 1.0


class Seen(NamedTuple):
    """Counts of one pipeline: offsets to process, offsets to write, and the sum of written offsets. None: unknown.

    Attributes:
        no_fold, no_land: reason why the backlog is unknown; "": topics are missing, so no record waits.
    """

    to_fold: int | None
    to_land: int | None
    landed: int | None
    no_fold: str = ""
    no_land: str = ""

    @property
    def made(self) -> int | None:
        """Sum of the end offsets of the topics that the sink writes."""
        return None if self.landed is None or self.to_land is None else self.landed + self.to_land


class Movement:
    """Last observation of each pipeline, and the time of the last progress.

    Args:
        clock: monotonic seconds.
    """

    FOLD, LAND = "to process", "to write"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, Seen] = {}
        self._moved_at: dict[tuple[str, str], float] = {}
        self._oldest_at: dict[str, float] = {}

    def take(self, domain: str, now: Seen) -> None:
        """Record an observation of a pipeline after the one before."""
        before = self._seen.get(domain)
        self._part((domain, self.FOLD), now.to_fold, before is None or _folded(before, now), now.no_fold)
        self._part((domain, self.LAND), now.to_land, before is None or _landed(before, now), now.no_land)
        self._seen[domain] = now

    def oldest(self, domain: str, at: float) -> None:
        """Record the send time of the oldest unprocessed record, in seconds of any clock. A later time means progress."""
        if at - self._oldest_at.get(domain, at) > _SAME_S:
            self._moved_at[domain, self.FOLD] = self._clock()
        self._oldest_at[domain] = at

    def moved_at(self, domain: str, part: str) -> float:
        """Time of the last progress, or of the last empty backlog."""
        return self._moved_at.get((domain, part), self._clock())

    def still_s(self, domain: str, part: str) -> float:
        """Seconds without progress of a backlog."""
        return self._clock() - self.moved_at(domain, part)

    def _part(self, at: tuple[str, str], waiting: int | None, moved: bool, unknown: str) -> None:
        if moved or waiting == 0 or (waiting is None and not unknown) or at not in self._moved_at:
            self._moved_at[at] = self._clock()


def _folded(before: Seen, now: Seen) -> bool:
    """Whether the processor made progress since `before`. A backlog that was empty counts as progress."""
    if before.to_fold == 0:
        return now.to_fold is not None
    less = before.to_fold is not None and now.to_fold is not None and now.to_fold < before.to_fold
    return less or (before.made is not None and now.made is not None and now.made > before.made)


def _landed(before: Seen, now: Seen) -> bool:
    if before.to_land == 0:
        return now.to_land is not None
    return before.landed is not None and now.landed is not None and now.landed > before.landed
