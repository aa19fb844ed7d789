"""Whether the sink gets on: what waits in Kafka, asked beside the landing, and what has landed of it.

That no batch comes is no sign that there is nothing to land: Spark may hang before it sees any. So Kafka is asked itself, in a
thread of its own, for a Kafka that is away must not keep anybody from landing. It is done only where somebody listens.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from onefold.processor.core.errors import Retriable
from onefold.spark_sink.errors import sentence
from onefold.spark_sink.landing.ledger import Partition
from onefold.telemetry import QUERY_RUNS, TO_LAND, Telemetry

# One question for each pipeline.
ASK_EVERY_S = 5.0


class Landing(Protocol):
    """What is looked at of a query."""

    @property
    def name(self) -> str:
        """The domain."""

    @property
    def reads(self) -> list[str]:
        """The topics that it lands."""

    @property
    def reached(self) -> Mapping[Partition, int]:
        """Up to which offset of each partition everything has landed; {} before it has begun."""


class LagMonitor:
    """Of one query.

    Args:
        ends: gives the offset after the last committed one, per partition of these topics. Raises Retriable.
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
        """What waits now, and whether anything has landed since the last time."""
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
    """Ask about all of them again and again, in a thread of its own, until asked to stop. Others may come meanwhile."""

    def ask() -> None:
        while not stop.is_set():
            for standing in list(standings.values()):
                standing.ask()
            stop.wait(ASK_EVERY_S)

    threading.Thread(target=ask, name="standing", daemon=True).start()
