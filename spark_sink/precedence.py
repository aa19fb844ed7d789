"""Which pipelines a start takes first: those for which something waits in Kafka.

A JVM that has just started is slow at everything that it does for the first time, and a query that starts does a lot. Queries
that start side by side hold each other up; so those that nobody waits for start when the others have landed something
(docs/decisions/0035).
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

import psycopg

from onefold.spark_sink.errors import Waiting
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.connection import connect

# Longer than the first batch takes on a quiet machine: what has not landed by then has trouble, or a backlog that is no
# reason to keep the others waiting.
PATIENCE_S = 10.0

#: Gives the offset after the last committed one, per partition of these topics. Raises Waiting.
Ends = Callable[[list[str]], Mapping[Partition, int]]


class Landing(Protocol):
    """What is looked at of a query."""

    @property
    def name(self) -> str:
        """The domain."""

    @property
    def landed(self) -> int:
        """How many offsets it has landed since its last start."""


class Supervised(Protocol):
    """What is put in order."""

    @property
    def query(self) -> Landing:
        """Who lands."""


One = TypeVar("One", bound=Supervised)


class Precedence:
    """Gives those a turn for which something waits, and everybody when these have landed.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: frozenset[str] = frozenset()
        self._first: frozenset[str] | None = None
        self._until = 0.0

    def ask(self, plans: Sequence[Plan], ends: Ends) -> threading.Thread:
        """Finds out for whom something waits, in a thread of its own, which is returned: a server that does not answer holds
        nobody up.
        """
        asking = threading.Thread(target=lambda: self.take_first(behind(plans, ends)), name="precedence", daemon=True)
        asking.start()
        return asking

    def take_first(self, names: frozenset[str]) -> None:
        """These pipelines go before all others. Said after the first turn, it is too late."""
        self._known = names

    def due(self, supervisors: Sequence[One]) -> list[One]:
        """Those that have a turn now. From the first call on nobody waits for longer than `PATIENCE_S`."""
        if self._first is None:
            self._first, self._until = self._known, self._clock() + PATIENCE_S
        ahead = [one for one in supervisors if one.query.name in self._first]
        if self._clock() < self._until and not all(one.query.landed for one in ahead):
            return ahead
        self._first = frozenset()  # for good: a query that is started again later has landed nothing either
        return list(supervisors)


def behind(plans: Sequence[Plan], ends: Ends) -> frozenset[str]:
    """The pipelines of which Kafka has more than Postgres. None where Postgres cannot tell, as before the very first start."""
    found = set()
    try:
        with closing(connect(plans[0].postgres_dsn, plans[0].writer)) as connection:
            for plan in plans:
                stored = ledger.positions(connection, plan.domain.name)
                landed = {place: position.next_offset for place, position in stored.items()}
                if _waits(plan, landed, ends):
                    found.add(plan.domain.name)
    except psycopg.Error:
        return frozenset()
    return frozenset(found)


def _waits(plan: Plan, landed: Mapping[Partition, int], ends: Ends) -> bool:
    try:
        return any(end > landed.get(place, 0) for place, end in ends(plan.reads).items())
    except Waiting:  # it will say so itself when it starts
        return False
