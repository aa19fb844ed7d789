"""Times at which rows become visible in PostgreSQL, by polling the ledger, which changes in the same transaction as the rows."""

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

import psycopg

from onefold import postgres
from onefold.operate.offsets import Place, landed_over

# Resolution of a gap in rows, well below the duration of a batch.
_LOOK_EVERY_S = 0.01


def gaps(moments: Mapping[int, Sequence[float]], since: float, until: float) -> list[float]:
    """Gaps in seconds between two times, the longest first: between adjacent moments of a partition, and at both ends."""
    found: list[float] = []
    for every in moments.values():
        inside = [since, *(at for at in every if since < at < until), until]
        found += [after - before for before, after in pairwise(inside)]
    return sorted(found, reverse=True)


class RowWatcher:
    """Poller of the ledger in a thread. `moments`: unix times of new rows, by partition.

    Args:
        dsn: connection string of the database.
        sink: pipeline whose tables are watched.
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
        """Start polling. The ledger must exist."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling. Raises RuntimeError if the ledger could not be read."""
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
