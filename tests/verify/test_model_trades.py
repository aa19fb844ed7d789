"""The judge's model of the trades domain, and the feed whose own sums it must confirm."""

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.apps import trades as app
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Event
from onefold.verify.contracts import contracts
from onefold.verify.decode import Inadmissible, decode
from onefold.verify.models import Model
from onefold.verify.record import Source
from onefold.workloads import trades
from onefold.workloads.trade_feed import Feed, Mix
from tests.support.expected import expect
from tests.verify.test_generators import log_of

COUNT = 8_000
TRADE = contracts()[trades.TOPIC]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def message(trade: str, version: int, value: str, leaf: tuple[str, str, str]) -> dict[str, Any]:
    # fields in another order than the contract's: only names count
    hierarchy = dict(zip(("TradeDesk", "Region", "RiskType"), reversed(leaf), strict=True))
    text = json.dumps({"Version": version, "Hierarchy": hierarchy, "TradeID": trade, "Timestamp": 5.25, "Value": "@"})
    return decode(TRADE, text.replace('"@"', value).encode())


A, B = ("Delta", "AMER", "FXSpot"), ("Delta", "EMEA", "Swaps")
STORY = [
    message("one", 0, "10.5", A),
    message("two", 4, "-3", A),
    message("one", 1, "0.000001", B),
    message("two", 5, "7", A),
]


def applied(values: list[dict[str, Any]]) -> trades.Model:
    model = trades.Model()
    for offset, value in enumerate(values):
        model.apply(value, Source(trades.TOPIC, 0, offset))
    model.settle()
    return model


def risk(model: Model) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {key: row[3:] for key, (row, _) in model.rows["trades.risk"].items()}


def test_every_level_is_the_sum_of_its_leaves() -> None:
    levels = risk(applied(STORY))
    assert levels[A] == (Decimal(7), 1)
    assert levels[B] == (Decimal("0.000001"), 1)
    assert levels["Delta", None, None] == levels[None, None, None] == (Decimal("7.000001"), 2)
    assert levels[None, "AMER", None] == levels["Delta", "AMER", None] == levels[None, None, "FXSpot"] == levels[A]
    assert set(levels) == {*_levels(A), *_levels(B)}


def _levels(leaf: tuple[str, str, str]) -> list[tuple[Any, ...]]:
    return [tuple(n if keep >> at & 1 else None for at, n in enumerate(leaf)) for keep in range(8)]


@given(st.permutations(STORY * 2))
def test_in_any_order_the_highest_version_of_each_trade_holds(values: list[dict[str, Any]]) -> None:
    current = applied(values).rows["trades.current"]
    assert current["one",][0][1:6] == (1, Decimal("0.000001"), *B)
    assert current["two",][0][1:6] == (5, Decimal(7), *A)


def test_a_leaf_that_everybody_left_stays_with_nothing() -> None:
    model = applied([STORY[0], STORY[2]])
    assert risk(model)[A] == (Decimal(0), 0)
    assert model.rows["trades.risk"][A][1].offset == 1


@given(
    st.decimals(allow_nan=False, allow_infinity=False).map(str)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,13})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
    st.integers(-1, 3),
    st.from_regex(r"-?(0|[1-9][0-9]{0,10})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)
def test_judge_and_judged_agree_on_what_a_message_is_worth(value: str, version: int, timestamp: str) -> None:
    leaf = SimpleNamespace(RiskType="a", Region="b", TradeDesk="c")
    fields = SimpleNamespace(
        TradeID="t", Value=Decimal(value), Version=version, Timestamp=float(timestamp), Hierarchy=leaf
    )
    try:
        trade, _ = app.handle(None, Event(trades.TOPIC, 0, 0, fields))
        assert trade is not None
        outputs = app.emit_change("t", None, trade)
        deltas = [output[1] for output in outputs]
        theirs = [(Decimal(delta.value).scaleb(-6), delta.traded_at) for delta in deltas]
    except Rejected:
        theirs = []
    try:
        plain = {"RiskType": "a", "Region": "b", "TradeDesk": "c"}
        model = applied([{**vars(fields), "Hierarchy": plain}])
        row, _ = model.rows["trades.current"]["t",]
        mine = [(row[2], round((row[6] - EPOCH).total_seconds() * 1_000_000))]
    except Inadmissible:
        mine = []
    assert theirs == mine


@pytest.mark.parametrize(
    "mix", [Mix(), Mix(changes=0.9, moves=0.5, duplicates=0.2, late=0.2, window=50), Mix(0, 0, 0, 0)]
)
def test_the_feeds_own_sums_are_those_of_the_judge(mix: Mix) -> None:
    feed = Feed(7, COUNT, mix)
    inputs = list(feed)
    expected = expect(trades.WORKLOAD, log_of(inputs), 4)
    leaves = {key: row for key, row in risk(expected.model).items() if None not in key and row[1]}
    sums = {leaf: (Decimal(value).scaleb(-6), many) for leaf, (value, many) in feed.truth().items() if many}
    assert sums == leaves
    assert len(inputs) == feed.made == COUNT
    assert not expected.dead


def test_the_feed_has_all_it_should_in_stated_shares() -> None:
    mix = Mix(changes=0.5, moves=0.2, duplicates=0.05, late=0.04)
    inputs = list(Feed(3, COUNT, mix))
    messages = [json.loads(given.value or b"") for given in inputs]
    repeated = sum(times - 1 for times in Counter(given.value for given in inputs).values())
    assert repeated == pytest.approx(0.05 * COUNT, rel=0.15)
    highest: dict[str, int] = {}
    overtaken = 0
    for one in messages:
        overtaken += one["Version"] < highest.get(one["TradeID"], -1)
        highest[one["TradeID"]] = max(one["Version"], highest.get(one["TradeID"], -1))
    assert overtaken > 0.03 * COUNT
    assert len(highest) == pytest.approx(0.47 * COUNT, rel=0.1)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9001])
def test_the_feed_stops_where_it_should(count: int) -> None:
    feed = Feed(1, count, Mix(duplicates=0.3, late=0.3))
    assert len(list(feed)) == feed.made == count


def test_a_feed_with_a_clock_has_the_time() -> None:
    ticks = iter(range(100))
    seconds = [
        json.loads(given.value or b"")["Timestamp"] for given in Feed(1, 9, Mix(0, 0, 0, 0), now=lambda: next(ticks))
    ]
    assert seconds == [0, 1, 2, 3, 4, 5, 6, 7, 8]
