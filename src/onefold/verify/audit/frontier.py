"""What has to be read before inputs are taken, and how far that is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

#: (topic, partition)
Place = tuple[str, int]
Offsets = Mapping[Place, int]


class Gate(NamedTuple):
    """The inputs up to `reached` are taken when what was written has been read up to `ends`. Times are monotonic seconds.

    Attributes:
        counted: how many records of each fate the processor had counted then.
        as_of: what the processor had written then is all before that.
        since: since when nothing more could be read of what was written.
    """

    reached: Offsets
    counted: Counter[str]
    ends: Offsets
    as_of: float
    since: float

    def unread(self, positions: Offsets) -> list[Place]:
        """Of what was written, the places that were not read up to there."""
        return [place for place, end in self.ends.items() if positions[place] < end]

    def is_reached(self, positions: Offsets) -> bool:
        """Whether the inputs were read as far as the processor was."""
        return all(positions[place] >= until for place, until in self.reached.items())

    def held(self, positions: Offsets, seconds: float) -> str:
        """Where results have been waited for so long that were begun and are not committed, in one sentence; or ""."""
        if time.monotonic() - self.since < seconds or not (unread := sorted(self.unread(positions))):
            return ""
        topic, partition = unread[0]
        return f"a transaction is open on {topic}/{partition}, from offset {positions[topic, partition]} on"
