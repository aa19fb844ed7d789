"""When which tick is due, and what its record says. The clock is given: nothing in here looks at one."""

import json
from collections.abc import Iterable


def tick_record(at_ms: int) -> tuple[None, bytes]:
    """Key and value of the tick's record."""
    return None, json.dumps({"at_ms": at_ms}, separators=(",", ":")).encode()


class Ticking:
    """Says which ticks one process has to write: of each partition the newest one that is over, once.

    Their times are the multiples of the interval, so that two processes that have, or believe they have, the same partition write
    the same ones; whoever folds them takes the first of each. After a pause there is one, and a clock that steps back gives none
    until it has come back to where it was.
    """

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._last: dict[int, int] = {}

    def due(self, partitions: Iterable[int], now_ms: int) -> list[tuple[int, int]]:
        """(partition, at_ms) of the ticks that are due now. Each is said once: who cannot write it leaves it out."""
        at_ms = now_ms - now_ms % self._every_ms
        late = [partition for partition in partitions if at_ms > self._last.get(partition, 0)]
        self._last |= dict.fromkeys(late, at_ms)
        return [(partition, at_ms) for partition in late]
