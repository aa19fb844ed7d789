"""Monitors the sink lag: the committed offsets in Kafka compared with the written offsets.

Without batches, the lag may still grow, because Spark may hang before the first batch. The monitor therefore queries Kafka. A
separate thread runs the queries, because a Kafka outage must not block the writes. The sink only starts the monitor if
telemetry is enabled.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from onefold.processor.core.errors import Retriable
from onefold.spark_sink.errors import sentence
from onefold.spark_sink.landing.ledger import Partition
from onefold.telemetry import QUERY_RUNS, TO_LAND, Telemetry

# One query to Kafka for each pipeline.
ASK_EVERY_S = 5.0


class Landing(Protocol):
    """The interface of a monitored query."""

    @property
    def name(self) -> str:
        """The pipeline."""

    @property
    def reads(self) -> list[str]:
        """The output topics of the query."""

    @property
    def reached(self) -> Mapping[Partition, int]:
        """The offset per partition below which all records are written. {} before the first start."""


class LagMonitor:
    """The lag monitor of one query.

    Args:
        ends: returns the offset after the last committed record, per partition of the topics. Raises Retriable.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        query: Landing,
        ends: Callable[[list[str]], Mapping[Partition, int]],
        telemetry: Telemetry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query = query
        self._ends = ends
        self._telemetry = telemetry
        self._clock = clock
        self._moved_at = clock()
        self._reached: Mapping[Partition, int] = {}
        self._why = "it starts"
        self.running = False
        self.trouble = ""

    def ask(self) -> None:
        """Measure the lag and the progress since the last call, and report both to the telemetry."""
        query, tell, domain = self._query, self._telemetry, self._query.name
        reached = dict(query.reached)
        if any(offset > self._reached.get(place, offset) for place, offset in reached.items()):
            self._moved_at = self._clock()
        self._reached = reached or self._reached
        try:
            ends = self._ends(query.reads)
        except Retriable as error:
            self._why = sentence(error)
        else:
            waiting = sum(max(0, end - self._reached.get(place, 0)) for place, end in ends.items())
            tell.put(TO_LAND, waiting, domain=domain)
            self._why = f"{waiting:,} offsets wait"
            if not waiting and reached and self.running:
                self._moved_at = self._clock()
        tell.put(QUERY_RUNS, self.running, domain=domain)
        tell.stands(domain, "", self._moved_at, "; ".join(filter(None, (self.trouble, self._why))))


def watch(standings: Mapping[str, LagMonitor], stop: threading.Event) -> None:
    """Run all monitors at intervals, in a daemon thread, until `stop` is set. The caller may add monitors in the meantime."""

    def ask() -> None:
        while not stop.is_set():
            for standing in list(standings.values()):
                standing.ask()
            stop.wait(ASK_EVERY_S)

    threading.Thread(target=ask, name="standing", daemon=True).start()
