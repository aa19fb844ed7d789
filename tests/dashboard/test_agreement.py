"""Whether sums agree is asked of every rollup, so that the headline is the same whatever view is open."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from onefold.dashboard import pipeline_facts, rollups
from onefold.dashboard import snapshot as snapshots
from onefold.dashboard.engine import DomainState, EngineTables, LastVerdict
from onefold.dashboard.panels import PanelReader, ShownPanel
from onefold.dashboard.pipeline_facts import AskedKafka
from onefold.dashboard.pipeline_status import Rank, headline
from onefold.dashboard.reader import DatabaseReader
from onefold.dashboard.rollups import TOO_MANY, Agreement, ExactSum, Level
from onefold.dashboard.snapshot import LagNow, OfPipeline, View, ViewSnapshot, declarations, take
from onefold.operate.lag import Lag
from onefold.operate.panels import Panels, Rollup
from tests.support.floor import Floor
from tests.support.site import Site

pytestmark = pytest.mark.promise("the-worst-headline")

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RIGHT = Agreement(True, 0, NOW - timedelta(seconds=60))
DRAINED = LagNow(
    {name: Lag(0, 0.0, 0, 0.0) for name in ("bar", "shop")}, NOW - timedelta(seconds=2), NOW - timedelta(seconds=1)
)
RISK = ("trades", "Risk by level")
SALES = Rollup(
    kind="rollup", title="Sales", query="TABLE shop.sales", levels=("shelf", "item"), value="euros", count="pieces"
)
_SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.sales (shelf text, item text, euros numeric NOT NULL, pieces bigint NOT NULL);
INSERT INTO shop.sales VALUES (NULL, NULL, 3, 2), ('a', NULL, 3, 2), (NULL, 'b', 3, 2), ('a', 'b', 3, 2);
GRANT USAGE ON SCHEMA shop TO onefold_reader; GRANT SELECT ON shop.sales TO onefold_reader
"""


def shown(agreements: Mapping[str, Agreement], verdict: LastVerdict | None = None) -> ViewSnapshot:
    """Two pipelines with three rollups, of which these differ."""
    engine = EngineTables(NOW, {name: DomainState(1, verdict=verdict) for name in ("bar", "shop")})
    every = {("shop", title): agreements.get(title, RIGHT) for title in ("Sales", "Returns")}
    return ViewSnapshot(engine, {("bar", "Sales"): RIGHT} | every)


def said(snapshot: ViewSnapshot, lag: LagNow = DRAINED) -> tuple[str, str]:
    """The headline, and the sentence below it."""
    first = headline(pipeline_facts.standings(snapshot, AskedKafka(lag), 60.0)).standing
    return first.text, first.detail


def test_the_headline_is_the_worst_of_every_rollup() -> None:
    """Also of two of one pipeline: levels that do not add up are the worse."""
    differs = {"Returns": replace(RIGHT, differing=2)}
    assert said(shown(differs)) == (
        "shop differs from its producer", "Nothing is on the way, and 2 sums are not the same in 'Returns'.",
    )  # fmt: skip
    assert said(shown({**differs, "Sales": replace(RIGHT, adds_up=False)})) == (
        "shop has levels that do not add up", "In 'Sales' the sums of one level differ from another level's sums.",
    )  # fmt: skip


def test_what_a_verdict_says_of_the_difference_is_told() -> None:
    valid = LastVerdict("valid", "", 1, NOW, 0)
    text, detail = said(shown({"Sales": replace(RIGHT, differing=1)}, valid))
    assert text == "shop differs from its producer"
    assert "1 sum is not the same in 'Sales'. Every row follows from the log" in detail


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
    assert said(shown({"Sales": replace(RIGHT, differing=1)}), lag)[0] == "bar was never verified"


def test_what_is_too_large_to_be_compared_is_said() -> None:
    large = shown({"Sales": Agreement(None, problem=TOO_MANY)})
    (found,) = (one for one in pipeline_facts.standings(large, AskedKafka(DRAINED), 60.0)["shop"][1:])
    assert (found.rank, found.detail) == (Rank.UNCOMPARED, f"Sales: {TOO_MANY}")


@pytest.fixture
def sales(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> Rollup:
    """A rollup of another pipeline beside that of trades, all of whose sums agree."""
    floor.connection.execute(_SHOP)
    every = {**declarations(), "shop": (Panels(panel=(SALES,)), "")}
    monkeypatch.setattr(snapshots, "declarations", lambda: every)
    return SALES


def taken(dsn: str, *views: View) -> list[ViewSnapshot]:
    """Snapshots of these views, of one moment."""

    async def run() -> dict[View, ViewSnapshot]:
        reader = DatabaseReader(dsn)
        found = await take(reader, views, PanelReader())
        await reader.close()
        return found

    found = asyncio.run(run())
    return [found[view] for view in views]


def level(snapshot: ViewSnapshot) -> tuple[ShownPanel, Level]:
    """The one rollup of a view."""
    (found,) = snapshot.panels
    assert isinstance(found.content, Level), found.trouble
    return found, found.content


def test_all_rollups_are_compared_in_every_snapshot(floor: Floor, database: str, sales: Rollup) -> None:
    """Leaf by leaf: what is added here and missing there is no less wrong."""
    floor.land(300)
    floor.report(ago_s=60)
    views: list[View] = [None, OfPipeline("trades", wanted=(("risk_type", "PV"),)), OfPipeline("shop")]
    for one in taken(database, *views):
        assert one.agreements["shop", "Sales"] == Agreement(True)
        risk = one.agreements[RISK]
        assert (risk.adds_up, risk.differing) == (True, 0)
        assert risk.reported_at is not None

    floor.add({("Delta", "EMEA", "Swaps"): [Decimal(1), 0], ("Delta", "AMER", "Swaps"): [Decimal(-1), 0]})
    floor.connection.execute("UPDATE shop.sales SET pieces = 3 WHERE item IS NULL")
    for one in taken(database, *views):
        assert one.agreements["shop", "Sales"] == Agreement(False)
        assert (one.agreements[RISK].adds_up, one.agreements[RISK].differing) == (True, 2)
    floor.connection.execute("TRUNCATE shop.sales; TRUNCATE trades.truth")
    (one,) = taken(database, None)
    assert (one.agreements["shop", "Sales"], one.agreements[RISK]) == (Agreement(None), Agreement(True)), (
        "a producer that reports nothing differs in nothing"
    )


def test_a_level_is_the_one_that_the_address_names(database: str, sales: Rollup) -> None:
    _, top = level(taken(database, OfPipeline("shop"))[0])
    assert (top.node.ours, [row.name for row in top.parts], top.reported_at) == (ExactSum(Decimal(3), 2), ["a"], None)
    _, below = level(taken(database, OfPipeline("shop", wanted=(("shelf", "a"),)))[0])
    assert (below.node.name, [row.name for row in below.parts]) == ("a", ["b"])
    _, elsewhere = level(taken(database, OfPipeline("shop", wanted=(("of", "2"), ("shelf", "a"))))[0])
    assert elsewhere.path == ()


def test_one_that_takes_too_long_leaves_the_others_and_the_page(
    floor: Floor, database: str, sales: Rollup, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor.land(300)
    made = rollups._comparison

    def slow(rollup: Rollup) -> Any:
        return "SELECT pg_sleep(30)" if rollup == sales else made(rollup)

    monkeypatch.setattr(rollups, "BUDGET_S", 1.0)
    monkeypatch.setattr(rollups, "_comparison", slow)
    (one,) = taken(database, OfPipeline("shop"))
    assert one.agreements == {("shop", "Sales"): Agreement(None, problem=TOO_MANY), RISK: Agreement(True)}
    assert level(one)[1].node.ours == ExactSum(Decimal(3), 2)


def test_one_whose_query_fails_leaves_the_others_and_the_page(
    floor: Floor, database: str, sales: Rollup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that are missing or unreadable are no finding: they are made later, or are for others to see."""
    floor.land(30)
    floor.connection.execute("REVOKE ALL ON shop.sales FROM onefold_reader")
    assert set(taken(database, None)[0].agreements) == {RISK}
    floor.connection.execute("GRANT SELECT ON shop.sales TO onefold_reader; ALTER TABLE shop.sales DROP COLUMN pieces")
    (one,) = taken(database, OfPipeline("shop"))
    assert one.agreements["shop", "Sales"].problem == 'The query does not work: column "pieces" does not exist.'
    assert one.agreements[RISK] == Agreement(True)
    assert [shown.trouble for shown in one.panels] == ['The query does not work: column "pieces" does not exist.']
    floor.connection.execute("DROP SCHEMA shop CASCADE")
    (one,) = taken(database, OfPipeline("shop"))
    assert set(one.agreements) == {RISK}
    assert [shown.trouble for shown in one.panels] == ['The query does not work: relation "shop.sales" does not exist.']


@pytest.mark.long  # 9 s
def test_the_page_says_it_under_every_address(site: Site, floor: Floor) -> None:
    floor.land(30)
    floor.connection.execute("UPDATE trades.risk SET trades = trades + 1 WHERE region IS NULL AND risk_type IS NULL")
    for path in ("/", "/?of=nothing", "/pipelines/trades", "/pipelines/trades?risk_type=Delta"):
        status, text = site.get(path)
        assert status == 200, site.said()
        assert "trades</a> breaks an invariant</h1>" in text or "trades breaks an invariant</h1>" in text
        if path.startswith("/pipelines/"):
            assert "has levels that do not add up" in text
