"""The trade's rule, as a table: (state, event) -> (state, outputs)."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import asdict

from onefold.processor.apps.trades import TIMESTAMP_MAX, TOPOLOGY, Trade, emit_change, handle
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Event

SEED_ID = "0d957268-2913-4dbb-b359-5ec5ff732cac"
SPOT, SWAPS = ("Delta", "AMER", "FXSpot"), ("Vega", "EMEA", "Swaps")


def message(
    version: int,
    value: str = "34624.51",
    leaf: tuple[str, str, str] = SPOT,
    timestamp: float = 1_616_413_258.899_707_8,
    trade: str = SEED_ID,
) -> Event:
    hierarchy = SimpleNamespace(RiskType=leaf[0], Region=leaf[1], TradeDesk=leaf[2])
    fields = {"TradeID": trade, "Value": Decimal(value), "Version": version, "Timestamp": timestamp}
    return Event("trades.trades", 0, 0, SimpleNamespace(**fields, Hierarchy=hierarchy))


def fold(*events: Event) -> tuple[Trade | None, list[dict[str, Any]]]:
    """Each event in a transaction of its own."""
    state: Trade | None = None
    deltas: list[dict[str, Any]] = []
    for event in events:
        before = state
        state, outputs = handle(state, event)
        assert outputs == ()
        if state is not before:
            assert state is not None
            deltas += [asdict(output[1]) for output in emit_change(event.value.TradeID, before, state)]
    return state, deltas


def test_changes_within_a_transaction_are_one_delta() -> None:
    """From how the trade was to how it is: where it was in between hears nothing."""
    first, _ = handle(None, message(0, "10"))
    second, _ = handle(first, message(1, "11", SWAPS))
    third, _ = handle(second, message(2, "12"))
    assert third is not None

    assert first is not None
    (output,) = emit_change(SEED_ID, first, third)
    topic, delta = output[:2]

    assert topic in TOPOLOGY.outputs
    assert moved([asdict(emit_change(SEED_ID, None, first)[0][1]), asdict(delta)]) == {SPOT: 12_000_000}
    assert delta.messages == 2


def moved(deltas: list[dict[str, Any]]) -> dict[tuple[str, str, str], int]:
    """What all deltas together leave in each leaf."""
    leaves: dict[tuple[str, str, str], int] = {}
    for delta in deltas:
        now = delta["risk_type"], delta["region"], delta["trade_desk"]
        left = delta["previous_risk_type"], delta["previous_region"], delta["previous_trade_desk"]
        before = now if left == (None, None, None) else left
        leaves[now] = leaves.get(now, 0) + delta["value"]
        if delta["previous_value"] is not None:
            leaves[before] -= delta["previous_value"]
    return leaves


def test_the_seeds_message() -> None:
    """Its value in whole millionths, its time in microseconds, and nothing before it."""
    state, (delta,) = fold(message(3))

    assert state == Trade(3, 34_624_510_000, *SPOT, 1_616_413_258_899_708)
    assert delta == {
        "trade_id": SEED_ID,
        "version": 3,
        "traded_at": 1_616_413_258_899_708,
        "messages": 1,
        "risk_type": "Delta",
        "region": "AMER",
        "trade_desk": "FXSpot",
        "value": 34_624_510_000,
        "previous_value": None,
        "previous_risk_type": None,
        "previous_region": None,
        "previous_trade_desk": None,
    }


@pytest.mark.parametrize("version", [3, 2, 0])
def test_a_version_that_is_no_news_changes_nothing(version: int) -> None:
    """The very same state comes back, whatever else the message says."""
    state, _ = fold(message(3))

    assert (state, ()) == handle(state, message(version, "1", SWAPS))
    assert state is handle(state, message(version, "1", SWAPS))[0]


def test_a_new_version_adjusts_by_the_difference() -> None:
    """Versions may be skipped; the one that comes late is disregarded."""
    _, deltas = fold(message(0, "10"), message(7, "4.5"), message(5, "99"), message(8, "-2.25"))

    assert [delta["previous_value"] for delta in deltas] == [None, 10_000_000, 4_500_000]
    assert {delta["previous_risk_type"] for delta in deltas} == {None}
    assert moved(deltas) == {SPOT: -2_250_000}


def test_a_move_changes_both_leaves() -> None:
    """The old leaf loses what the trade was worth before, the new one has what it is worth now."""
    _, deltas = fold(message(0, "10"), message(1, "12", SWAPS))

    assert moved(deltas) == {SPOT: 0, SWAPS: 12_000_000}


@pytest.mark.parametrize("leaf", [("Vega", *SPOT[1:]), (SPOT[0], "EMEA", SPOT[2]), (*SPOT[:2], "Rates")])
def test_a_leaf_is_another_one_by_any_of_its_names(leaf: tuple[str, str, str]) -> None:
    _, deltas = fold(message(0, "10"), message(1, "11", leaf))

    assert moved(deltas) == {SPOT: 0, leaf: 11_000_000}


@pytest.mark.parametrize(
    ("text", "millionths"),
    [
        ("0", 0),
        ("-0.0", 0),
        ("0.1", 100_000),
        ("0.000001", 1),
        ("1.50000000000000000000", 1_500_000),
        ("1e3", 1_000_000_000),
        ("999999999999.999999", 999_999_999_999_999_999),
        ("-999999999999.999999", -999_999_999_999_999_999),
        ("0e-999999", 0),
    ],
)
def test_values_are_exact(text: str, millionths: int) -> None:
    assert fold(message(0, text))[1][0]["value"] == millionths


@pytest.mark.parametrize(
    "text",
    ["1e12", "-1e12", "0.0000001", "1.00000000000000000000000000000001", "1e-999999", "1e999999", "NaN", "sNaN", "-Infinity"],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(text: str) -> None:
    """Rounding is not an option, and neither is a number of a million digits."""
    with pytest.raises(Rejected, match="Value must be a decimal"):
        handle(None, message(0, text))


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (message(-1), "Version"),
        (message(0, timestamp=-0.1), "Timestamp"),
        (message(0, timestamp=TIMESTAMP_MAX + 1), "Timestamp"),
        (message(0, timestamp=float("nan")), "Timestamp"),
        (message(0, timestamp=float("inf")), "Timestamp"),
        (message(0, trade=""), "TradeID"),
        (message(0, trade="x" * 201), "TradeID"),
        (message(0, leaf=("", "AMER", "FXSpot")), "RiskType"),
        (message(0, leaf=("Delta", "x" * 101, "FXSpot")), "Region"),
        (message(0, leaf=("Delta", "AMER", "")), "TradeDesk"),
    ],
)
def test_what_is_out_of_range_is_refused(event: Event, field: str) -> None:
    """The reason names the field; also for a version that would be ignored."""
    with pytest.raises(Rejected, match=field):
        handle(None, event)
    with pytest.raises(Rejected, match=field):
        handle(Trade(9, 0, *SPOT, 0), event)
