"""Whether a query gets on, as its sink tells: by what waits in Kafka, and what has landed of it."""

from collections.abc import Mapping

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.lag_monitor import LagMonitor
from onefold.spark_sink.landing.ledger import Partition
from onefold.telemetry import QUERY_RUNS, TO_LAND
from tests.support.clock import Clock
from tests.support.told import Kept

LEFT, RIGHT = ("orders.totals", 0), ("orders.totals", 1)


class Made:
    """A query and a Kafka, as a test says."""

    name, reads = "orders", ["orders.totals"]

    def __init__(self) -> None:
        self.reached: Mapping[Partition, int] = {}
        self.ends: Mapping[Partition, int] | None = {LEFT: 5, RIGHT: 5}
        self.clock, self.told = Clock(), Kept()
        self.standing = LagMonitor(self, self._ends, self.told, self.clock)
        self.standing.running = True

    def _ends(self, topics: list[str]) -> Mapping[Partition, int]:
        assert topics == self.reads
        if self.ends is None:
            raise Retriable(Code.KAFKA_SILENT, "Kafka does not answer")
        return self.ends

    def quiet_s(self) -> float:
        """After ten more seconds, of how many nothing has moved."""
        self.clock.now += 10
        self.standing.ask()
        return self.clock.now - self.told.standing["orders", ""][0]

    def why(self) -> str:
        return self.told.standing["orders", ""][1]


def test_what_lands_is_progress() -> None:
    made = Made()
    made.reached = {LEFT: 0, RIGHT: 2}
    assert made.quiet_s() == 10
    made.reached = {LEFT: 1, RIGHT: 2}
    assert made.quiet_s() == 0
    assert made.quiet_s() == 10
    assert made.quiet_s() == 20
    assert (made.why(), made.told.gauges[TO_LAND], made.told.gauges[QUERY_RUNS]) == ("7 offsets wait", 7, 1)


def test_where_nothing_waits_all_is_well() -> None:
    made = Made()
    made.reached = {LEFT: 5, RIGHT: 5}
    assert [made.quiet_s(), made.quiet_s()] == [0, 0]
    made.ends = {LEFT: 5, RIGHT: 6}
    assert made.quiet_s() == 10


def test_a_kafka_that_is_away_is_no_reason_to_call_it_drained() -> None:
    made = Made()
    made.reached = {LEFT: 5, RIGHT: 5}
    made.quiet_s()
    made.ends = None
    assert [made.quiet_s(), made.quiet_s()] == [10, 20]
    assert made.why() == "Kafka does not answer"


def test_starting_again_and_again_is_no_progress() -> None:
    """It begins where Postgres says, each time at the same place; nor is going back any."""
    made = Made()
    made.reached = {LEFT: 3, RIGHT: 3}
    made.quiet_s()
    for reached in ({}, {LEFT: 3, RIGHT: 3}, {}, {LEFT: 2, RIGHT: 3}):
        made.reached = reached
        made.standing.trouble = "Postgres does not answer"
        quiet_s = made.quiet_s()
    assert quiet_s == 50
    assert made.why() == "Postgres does not answer; 5 offsets wait"


def test_a_query_that_does_not_run_is_not_called_drained() -> None:
    """What it would have to land nobody can say: its pipeline was left out."""
    made = Made()
    made.reached = {LEFT: 5, RIGHT: 5}
    made.quiet_s()
    made.reached, made.standing.running = {}, False
    assert made.quiet_s() == 10
