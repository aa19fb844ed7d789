"""The first line, case by case, without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from onefold.dashboard import words
from onefold.dashboard.engine import DomainState, Engine, Verdict
from onefold.dashboard.rollups import Level, Rollup, Row, Sum
from onefold.dashboard.snapshot import LagNow, Snapshot, headline
from onefold.dashboard.summaries import Summary

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ROLLUP = Rollup("shop", "sales", ("shelf", "item"), "euros", "pieces", True, True)
DRAINED = LagNow({"shop": {"events": 0}}, NOW - timedelta(seconds=2), NOW - timedelta(seconds=1))


def snapshot(ours: str, truth: str | None, *, reported_s: float = 60, verdict: Verdict | None = None) -> Snapshot:
    """Ours and the producer's sum, of one piece each; the producer reported that long ago."""
    reported = Sum(Decimal(truth), 1) if truth is not None else None
    level = Level((), Row("", Sum(Decimal(ours), 1), reported), [], 0, True, NOW - timedelta(seconds=reported_s))
    return Snapshot(Engine(NOW, {"shop": DomainState(verdict=verdict)}), [ROLLUP], ROLLUP, level, None)


def verdict(outcome: str, since: int = 0) -> Verdict:
    """A word of the judge."""
    return Verdict(outcome, "3 differences", 10, NOW, since)


def test_equal_is_good_and_verified_is_better() -> None:
    assert headline(snapshot("1.10", "1.1"), DRAINED).tone == "good"
    assert headline(snapshot("1", "1", verdict=verdict("valid")), DRAINED).text == "Equal, and verified"
    assert headline(snapshot("1", "1", verdict=verdict("valid", since=1)), DRAINED).text == "Equal"
    assert headline(snapshot("1", "1", verdict=verdict("unknown")), DRAINED).text == "Equal"


def test_invalid_is_worse_than_equal() -> None:
    found = headline(snapshot("1", "1", verdict=verdict("invalid")), DRAINED)

    assert (found.tone, found.detail) == ("bad", "3 differences. Run onefold verify to see which rows.")


def test_the_levels_come_before_all_else() -> None:
    broken = snapshot("1", "1", verdict=verdict("valid"))
    assert broken.level is not None

    assert headline(replace(broken, level=replace(broken.level, adds_up=False)), DRAINED).tone == "bad"


def test_a_broken_invariant_comes_before_all_else_and_without_sums_the_invariants_are_what_is_said() -> None:
    kept, broken = Summary("bank", [], 2, []), Summary("bank", [], 2, ["bank.total: total 1, opened 2"])
    equal = snapshot("1", "1", verdict=verdict("valid"))
    assert headline(replace(equal, summaries=[kept]), DRAINED).text == "Equal, and verified"
    found = headline(replace(equal, summaries=[kept, broken]), DRAINED)
    assert (found.tone, found.detail) == (
        "bad", "bank.total: total 1, opened 2. Run onefold verify to see which rows.",
    )  # fmt: skip
    alone = Snapshot(equal.engine, [], None, None, None, [kept])
    assert headline(alone, DRAINED).text == "All invariants hold"
    assert headline(replace(alone, summaries=[replace(kept, rules=0)]), DRAINED).text == "Nothing has landed yet"


@pytest.mark.parametrize(
    ("lag", "reported_s", "tone"),
    [
        (DRAINED, 60, "bad"),
        (DRAINED, 1, "busy"),  # it has just reported: what it sent last may not have reached Kafka
        (replace(DRAINED, answered_at=NOW + timedelta(seconds=1)), 60, "busy"),  # the snapshot is the older one
        (replace(DRAINED, lag={"shop": {"events": 7}}), 60, "busy"),
        (replace(DRAINED, lag={"shop": {"events": None}}, problem="Kafka does not answer."), 60, "quiet"),
        (LagNow({}, None, None), 60, "quiet"),
    ],
)
def test_a_difference_is_wrong_only_when_nothing_is_on_the_way(lag: LagNow, reported_s: float, tone: str) -> None:
    assert headline(snapshot("1", "2", reported_s=reported_s), lag).tone == tone


def test_when_the_log_itself_says_something_else_than_the_producer() -> None:
    found = headline(snapshot("1", "2", verdict=verdict("valid")), DRAINED)

    assert found.tone == "bad"
    assert "the log holds something else" in found.detail


def test_without_a_producer_there_is_nothing_to_compare() -> None:
    assert headline(snapshot("1", None), DRAINED).tone == "quiet"


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
