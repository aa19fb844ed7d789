"""The outputs to read before the model takes more inputs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

#: (topic, partition)
Place = tuple[str, int]
Offsets = Mapping[Place, int]


class Gate(NamedTuple):
    """The model takes the inputs up to `reached` after the outputs were read up to `ends`. Times are monotonic seconds.

    Attributes:
        counted: the processor's counts of records by fate, as of `reached`.
        as_of: all progress of the processor before this time is in `reached`.
        since: the time since which no further record below `ends` could be read.
    """

    reached: Offsets
    counted: Counter[str]
    ends: Offsets
    as_of: float
    since: float

    def unread(self, positions: Offsets) -> list[Place]:
        """Return the output partitions not yet read up to `ends`."""
        return [place for place, end in self.ends.items() if positions[place] < end]

    def is_reached(self, positions: Offsets) -> bool:
        """Return whether the inputs were read up to the processor's progress."""
        return all(positions[place] >= until for place, until in self.reached.items())

    def held(self, positions: Offsets, seconds: float) -> str:
        """Return which open transaction has blocked the outputs for at least `seconds`, in one sentence; or ""."""
        if time.monotonic() - self.since < seconds or not (unread := sorted(self.unread(positions))):
            return ""
        topic, partition = unread[0]
        return f"a transaction is open on {topic}/{partition}, from offset {positions[topic, partition]} on"
