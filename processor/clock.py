"""The clock of an instance: it writes the ticks that are due."""

import time
from collections.abc import Mapping

from onefold.processor.core.ticks import Ticking
from onefold.processor.core.topology import Topology
from onefold.processor.io.tick_writer import TickWriter
from onefold.processor.runtime.pool import TaskPool


class Clock:
    """The only clock whose time a fold ever sees, and only as records: it writes the ticks of the tasks that run here."""

    def __init__(self, topology: Topology, client: Mapping[str, str], pool: TaskPool) -> None:
        assert topology.tick is not None, "there is a tick"
        self._ticking = Ticking(topology.tick.every_ms)
        self._writer = TickWriter(topology, client)
        self._pool = pool

    def strike(self) -> None:
        """Write what is due. A task that has not caught up since it was opened gets none: it would find all of them at once,
        and the first before the records that have waited longer.
        """
        self._writer.write(self._ticking.due(self._pool.caught_up(), time.time_ns() // 1_000_000))

    def close(self) -> None:
        """Write no more."""
        self._writer.close()
