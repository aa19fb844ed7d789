"""Since when nothing moves, of what waits: seen from outside, by what is asked again and again.

Each service says of itself whether it gets on. What no service can say is that there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# So much the time of sending of the oldest may differ between two questions although it is the same record: it is worked out
# from an age, and the machine may have been busy in between.
_SAME_S = 1.0


class Seen(NamedTuple):
    """Of one pipeline: what waits to be folded, and to be landed, and what is landed. None: unknown.

    Attributes:
        no_fold, no_land: why it is unknown what waits; "": topics are missing, and nothing waits there.
    """

    to_fold: int | None
    to_land: int | None
    landed: int | None
    no_fold: str = ""
    no_land: str = ""

    @property
    def made(self) -> int | None:
        """How far the topics reach that are landed."""
        return None if self.landed is None or self.to_land is None else self.landed + self.to_land


class Movement:
    """Keeps what was seen, and since when nothing moves.

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
        """What is seen of a pipeline, after what was seen before."""
        before = self._seen.get(domain)
        self._part((domain, self.FOLD), now.to_fold, before is None or _folded(before, now), now.no_fold)
        self._part((domain, self.LAND), now.to_land, before is None or _landed(before, now), now.no_land)
        self._seen[domain] = now

    def oldest(self, domain: str, at: float) -> None:
        """When the oldest was sent that waits to be processed, in seconds of any clock: a younger one than before is progress."""
        if at - self._oldest_at.get(domain, at) > _SAME_S:
            self._moved_at[domain, self.FOLD] = self._clock()
        self._oldest_at[domain] = at

    def moved_at(self, domain: str, part: str) -> float:
        """When it last moved, or had nothing to do."""
        return self._moved_at.get((domain, part), self._clock())

    def still_s(self, domain: str, part: str) -> float:
        """So long nothing has moved that waits."""
        return self._clock() - self.moved_at(domain, part)

    def _part(self, at: tuple[str, str], waiting: int | None, moved: bool, unknown: str) -> None:
        if moved or waiting == 0 or (waiting is None and not unknown) or at not in self._moved_at:
            self._moved_at[at] = self._clock()


def _folded(before: Seen, now: Seen) -> bool:
    """Whether a processor has done anything in between. What waits may also have begun to only now."""
    if before.to_fold == 0:
        return now.to_fold is not None
    less = before.to_fold is not None and now.to_fold is not None and now.to_fold < before.to_fold
    return less or (before.made is not None and now.made is not None and now.made > before.made)


def _landed(before: Seen, now: Seen) -> bool:
    if before.to_land == 0:
        return now.to_land is not None
    return before.landed is not None and now.landed is not None and now.landed > before.landed
