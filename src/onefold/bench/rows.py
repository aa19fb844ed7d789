"""When rows land in Postgres: the ledger, which moves in the same transaction as the rows, is looked at again and again."""

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

import psycopg

from onefold import postgres
from onefold.operate.offsets import Place, landed_over

# The resolution of a gap in rows. A batch of the sink takes ten times as long.
_LOOK_EVERY_S = 0.01


def gaps(moments: Mapping[int, Sequence[float]], since: float, until: float) -> list[float]:
    """The longest first, in seconds: between two moments of a partition, or a moment and the end, between these times."""
    found: list[float] = []
    for every in moments.values():
        inside = [since, *(at for at in every if since < at < until), until]
        found += [after - before for before, after in pairwise(inside)]
    return sorted(found, reverse=True)


class RowWatcher:
    """Looks at the ledger in a thread of its own. `moments`: by partition when rows of it were seen to have landed.

    Args:
        dsn: of the database.
        sink: the pipeline whose tables are landed.
    """

    def __init__(self, dsn: str, sink: str, partitions: int) -> None:
        self._dsn = dsn
        self._sink = sink
        self._done = threading.Event()
        self._seen: dict[Place, int] = {}
        self._failure: Exception | None = None
        self.moments: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin. The ledger has to be there."""
        self._thread.start()

    def stop(self) -> None:
        """End. Raises RuntimeError when it could not look."""
        self._done.set()
        self._thread.join(5.0)
        if self._failure is not None:
            raise RuntimeError(f"the ledger could not be read: {self._failure}")

    def all_land(self) -> bool:
        """Whether rows of each partition have been seen."""
        return all(self.moments.values())

    def _run(self) -> None:
        try:
            with postgres.connect(self._dsn, "onefold bench") as connection:
                while not self._done.wait(_LOOK_EVERY_S):
                    landed = landed_over(connection, self._sink)
                    now = time.time()
                    for place, at in landed.items():
                        if self._seen.get(place, at) != at:
                            self.moments[place[1]].append(now)
                    self._seen = landed
        except psycopg.Error as error:
            self._failure = error
