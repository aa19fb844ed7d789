"""What the sums mean, case by case, without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from onefold.dashboard import words
from onefold.dashboard.engine import DomainState, EngineTables, LastVerdict
from onefold.dashboard.panels import ShownPanel
from onefold.dashboard.rollups import Agreement, ExactSum, Level, LevelRow
from onefold.dashboard.snapshot import LagNow, SumComparison, ViewSnapshot, comparison
from onefold.operate.lag import UNKNOWN, Lag
from onefold.operate.panels import Rollup

pytestmark = pytest.mark.promise("wrong-sums-turn-red")

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ROLLUP = Rollup(
    kind="rollup", title="Sales", query="TABLE shop.sales", levels=("shelf", "item"), value="euros", count="pieces",
    expected="TABLE shop.reported",
)  # fmt: skip
DRAINED = LagNow({"shop": Lag(0, 0.0, 0, 0.0)}, NOW - timedelta(seconds=2), NOW - timedelta(seconds=1))


def snapshot(
    ours: str, expected: str | None, *, reported_s: float = 60, verdict: LastVerdict | None = None
) -> tuple[ViewSnapshot, ShownPanel]:
    """Ours and the producer's sum, of one piece each; the producer reported that long ago."""
    reported = ExactSum(Decimal(expected), 1) if expected is not None else None
    level = Level((), LevelRow("", ExactSum(Decimal(ours), 1), reported), [], 0, NOW - timedelta(seconds=reported_s))
    agreements = {("shop", "Sales"): Agreement(adds_up=True)}
    return ViewSnapshot(EngineTables(NOW, {"shop": DomainState(verdict=verdict)}), agreements), ShownPanel(
        1, ROLLUP, NOW, level
    )


def verdict(outcome: str, since: int = 0) -> LastVerdict:
    """A word of the judge."""
    return LastVerdict(outcome, "3 differences", 10, NOW, since)


def compared(found: tuple[ViewSnapshot, ShownPanel], lag: LagNow = DRAINED) -> SumComparison:
    """What comes of comparing, where there is something to compare."""
    made = comparison(found[0], "shop", found[1], lag)
    assert made is not None
    return made


def test_equal_is_good_and_verified_is_better() -> None:
    assert compared(snapshot("1.10", "1.1")).tone == "good"
    assert compared(snapshot("1", "1", verdict=verdict("valid"))).text == "Equal, and verified"
    assert compared(snapshot("1", "1", verdict=verdict("valid", since=1))).text == "Equal"
    assert compared(snapshot("1", "1", verdict=verdict("unknown"))).text == "Equal"


def test_the_levels_come_before_all_else() -> None:
    found, shown = snapshot("1", "1", verdict=verdict("valid"))
    broken = replace(found, agreements={("shop", "Sales"): Agreement(adds_up=False)})

    assert compared((broken, shown)).tone == "bad"


def test_where_nothing_has_landed_nothing_is_compared() -> None:
    empty = Level((), LevelRow("", None, None), [], 0, None)
    for content in (empty, None):
        assert comparison(ViewSnapshot(EngineTables(NOW)), "shop", ShownPanel(1, ROLLUP, NOW, content), DRAINED) is None


@pytest.mark.parametrize(
    ("lag", "reported_s", "tone"),
    [
        (DRAINED, 60, "bad"),
        (DRAINED, 1, "busy"),  # it has just reported: what it sent last may not have reached Kafka
        (replace(DRAINED, answered_at=NOW + timedelta(seconds=1)), 60, "busy"),  # the sums are older than the answer
        (replace(DRAINED, lag={"shop": Lag(3, 1.0, 4, 2.0)}), 60, "busy"),
        (replace(DRAINED, lag={"shop": UNKNOWN}, problem="Kafka does not answer."), 60, "quiet"),
        (LagNow({}, None, None), 60, "quiet"),
    ],
)
def test_a_difference_is_wrong_only_when_nothing_is_on_the_way(lag: LagNow, reported_s: float, tone: str) -> None:
    assert compared(snapshot("1", "2", reported_s=reported_s), lag).tone == tone


def test_when_the_log_itself_says_something_else_than_the_producer() -> None:
    found = compared(snapshot("1", "2", verdict=verdict("valid")))

    assert found.tone == "bad"
    assert "the log holds something else" in found.detail


def test_without_a_producer_there_is_nothing_to_compare() -> None:
    assert compared(snapshot("1", None)).tone == "quiet"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0.00"),
        ("-0.000001", "\N{MINUS SIGN}0.000001"),
        ("1234567890123456789012.5", "1,234,567,890,123,456,789,012.50"),
        ("1E+3", "1,000.00"),
        ("1.230000", "1.23"),
    ],
)
def test_decimals_are_written_whole(value: str, text: str) -> None:
    assert words.exact(Decimal(value)) == text
