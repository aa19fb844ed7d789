"""Compute which ticks are due, and encode their records. The caller passes the time."""

import json
from collections.abc import Iterable


def tick_record(at_ms: int) -> tuple[None, bytes]:
    """Return key and value of a tick's record."""
    return None, json.dumps({"at_ms": at_ms}, separators=(",", ":")).encode()


class Ticking:
    """The ticks that one process must write: for each partition the newest past tick, once.

    The times are multiples of the interval, so two owners of a partition, real or supposed, write the same ticks. `fold`
    processes the first tick of each time. A pause leaves a single tick. If the clock steps back, no tick is due until the
    clock has passed its earlier time.
    """

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._last: dict[int, int] = {}

    def due(self, partitions: Iterable[int], now_ms: int) -> list[tuple[int, int]]:
        """Return (partition, at_ms) of the ticks due now. Each tick is returned once, even if its write then fails."""
        at_ms = now_ms - now_ms % self._every_ms
        late = [partition for partition in partitions if at_ms > self._last.get(partition, 0)]
        self._last |= dict.fromkeys(late, at_ms)
        return [(partition, at_ms) for partition in late]
