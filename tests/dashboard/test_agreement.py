"""Whether sums agree is asked of every rollup, so that the headline is the same whatever view is open."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from onefold.dashboard import agreement, known
from onefold.dashboard.agreement import Agreement, Agreements
from onefold.dashboard.bars import Charts
from onefold.dashboard.engine import DomainState, Engine, Verdict
from onefold.dashboard.known import Asked
from onefold.dashboard.reader import Reader
from onefold.dashboard.rollups import Level, Rollup, Row, Sum
from onefold.dashboard.snapshot import LagNow, OfPipeline, Snapshot, View, take
from onefold.dashboard.standing import Rank, headline
from onefold.operate.lag import Lag
from tests.support.floor import Floor
from tests.support.site import Site

pytestmark = pytest.mark.promise("the-worst-headline")

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SALES, RETURNS, OTHER = (
    Rollup(schema, table, ("shelf", "item"), "euros", "pieces", True, True)
    for schema, table in (("shop", "sales"), ("shop", "returns"), ("bar", "sales"))
)
RIGHT = Agreement(True, 0, NOW - timedelta(seconds=60))
DRAINED = LagNow(
    {name: Lag(0, 0.0, 0, 0.0) for name in ("bar", "shop")}, NOW - timedelta(seconds=2), NOW - timedelta(seconds=1)
)
_SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.sales (shelf text, item text, euros numeric NOT NULL, pieces bigint NOT NULL,
                         UNIQUE NULLS NOT DISTINCT (shelf, item));
INSERT INTO shop.sales VALUES (NULL, NULL, 3, 2), ('a', NULL, 3, 2), (NULL, 'b', 3, 2), ('a', 'b', 3, 2);
INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)
VALUES ('shop', 'shop.sums', 0, 1, 'an-id', 'test', clock_timestamp());
GRANT USAGE ON SCHEMA shop TO onefold_reader; GRANT SELECT ON shop.sales TO onefold_reader
"""


def shown(rollup: Rollup, agreements: Agreements, verdict: Verdict | None = None) -> Snapshot:
    """A view of one of three rollups; all that it shows itself is equal."""
    one = Sum(Decimal(1), 1)
    level = Level((), Row("", one, one), [], 0, True, RIGHT.reported_at)
    engine = Engine(NOW, {name: DomainState(1, verdict=verdict) for name in ("bar", "shop")})
    every = {each.name: RIGHT for each in (SALES, RETURNS, OTHER)} | agreements
    return Snapshot(engine, [OTHER, RETURNS, SALES], rollup, level, None, agreements=every)


def said(snapshot: Snapshot, lag: LagNow = DRAINED) -> tuple[str, str]:
    """The headline, and the sentence below it."""
    first = headline(known.standings(snapshot, Asked(lag), 60.0)).standing
    return first.text, first.detail


@pytest.mark.parametrize("rollup", [SALES, RETURNS, OTHER], ids=lambda one: one.name)
def test_the_headline_is_of_every_rollup_whichever_is_shown(rollup: Rollup) -> None:
    """Also of two of one pipeline: levels that do not add up are the worse."""
    differs: Agreements = {"shop.returns": replace(RIGHT, differing=2)}
    assert said(shown(rollup, differs)) == (
        "shop differs from its producer", "Nothing is on the way, and 2 sums are not the same in shop.returns.",
    )  # fmt: skip
    assert said(shown(rollup, {**differs, "shop.sales": replace(RIGHT, adds_up=False)})) == (
        "shop has levels that do not add up", "In shop.sales the sums of one level differ from another level's sums.",
    )  # fmt: skip


def test_what_a_verdict_says_of_the_difference_is_told() -> None:
    valid = Verdict("valid", "", 1, NOW, 0)
    text, detail = said(shown(OTHER, {"shop.sales": replace(RIGHT, differing=1)}, valid))
    assert text == "shop differs from its producer"
    assert "1 sum is not the same in shop.sales. Every row follows from the log" in detail


@pytest.mark.parametrize(
    "lag",
    [
        replace(DRAINED, lag={"shop": Lag(3, 1.0, 0, 0.0)}),
        replace(DRAINED, lag={}),
        replace(DRAINED, answered_at=NOW + timedelta(seconds=1)),
        replace(DRAINED, asked_at=NOW - timedelta(seconds=57)),
    ],
)
def test_what_may_be_on_the_way_is_no_headline(lag: LagNow) -> None:
    assert said(shown(OTHER, {"shop.sales": replace(RIGHT, differing=1)}), lag)[0] == "bar was never verified"


def test_what_is_too_large_to_be_compared_is_said() -> None:
    (found,) = (one for one in known.standings(shown(SALES, {"shop.sales": None}), Asked(DRAINED), 60.0)["shop"][1:])
    assert (found.rank, found.detail) == (
        Rank.UNCOMPARED, "shop.sales has too many rows to be compared each second.",
    )  # fmt: skip


def taken(dsn: str, *views: View) -> list[Snapshot]:
    """Snapshots of these views, of one moment."""

    async def run() -> dict[View, Snapshot]:
        reader = Reader(dsn)
        found = await take(reader, views, Charts())
        await reader.close()
        return found

    found = asyncio.run(run())
    return [found[view] for view in views]


def test_all_rollups_are_compared_in_every_snapshot(floor: Floor, database: str) -> None:
    """Leaf by leaf: what is added here and missing there is no less wrong."""
    floor.land(300)
    floor.report(ago_s=60)
    floor.connection.execute(_SHOP)
    views: list[View] = [(), (("of", "trades.risk"), ("risk_type", "PV")), OfPipeline("shop")]
    for one in taken(database, *views):
        assert one.agreements["shop.sales"] == Agreement(True)
        risk = one.agreements["trades.risk"]
        assert risk is not None
        assert (risk.adds_up, risk.differing) == (True, 0)
        assert risk.reported_at is not None
        assert one.level is not None
        assert one.level.adds_up is True

    floor.add({("Delta", "EMEA", "Swaps"): [Decimal(1), 0], ("Delta", "AMER", "Swaps"): [Decimal(-1), 0]})
    floor.connection.execute("UPDATE shop.sales SET pieces = 3 WHERE item IS NULL")
    for one in taken(database, *views):
        assert one.agreements["shop.sales"] == Agreement(False)
        risk = one.agreements["trades.risk"]
        assert risk is not None
        assert (risk.adds_up, risk.differing) == (True, 2)
    floor.connection.execute("TRUNCATE shop.sales; TRUNCATE trades.truth")
    (one,) = taken(database, ())
    risk = one.agreements["trades.risk"]
    assert (one.agreements["shop.sales"], risk) == (Agreement(None), Agreement(True)), (
        "who says nothing differs in nothing"
    )


def test_one_that_takes_too_long_leaves_the_others_and_the_page(
    floor: Floor, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor.land(300)
    floor.connection.execute(_SHOP)
    made = agreement._query

    def slow(rollup: Rollup) -> Any:
        return "SELECT pg_sleep(30)" if rollup.name == "shop.sales" else made(rollup)

    monkeypatch.setattr(agreement, "BUDGET_S", 1.0)
    monkeypatch.setattr(agreement, "_query", slow)
    (one,) = taken(database, (("of", "shop.sales"),))
    assert one.agreements == {"shop.sales": None, "trades.risk": Agreement(True)}
    assert one.level is not None
    assert (one.level.adds_up, one.level.node.ours) == (None, Sum(Decimal(3), 2))


def test_a_table_of_another_form_is_no_truth(floor: Floor, database: str) -> None:
    """Whatever its name is: asked for what it has not, it would take the whole page down."""
    floor.connection.execute(_SHOP)
    floor.connection.execute("CREATE TABLE shop.truth (shelf text, euros numeric)")
    floor.connection.execute("GRANT SELECT ON shop.truth TO onefold_reader")
    (one,) = taken(database, (("of", "shop.sales"),))
    assert [(found.name, found.has_truth) for found in one.rollups] == [("shop.sales", False), ("trades.risk", True)]


@pytest.mark.long  # 9 s
def test_the_page_says_it_under_every_address(site: Site, floor: Floor) -> None:
    floor.land(30)
    floor.connection.execute(_SHOP)
    floor.connection.execute("UPDATE shop.sales SET pieces = 3 WHERE item IS NULL AND shelf IS NULL")
    for path in ("/", "/?of=trades.risk", "/?of=shop.sales&shelf=a", "/?of=nothing"):
        status, text = site.get(path)
        assert status == 200, site.said()
        assert "has levels that do not add up</h1>" in text
        assert "In shop.sales the sums of one level differ" in text
