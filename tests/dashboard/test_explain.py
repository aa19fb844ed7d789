"""The page behind a row, over a real database: what made it, or what is known of that while Kafka is away."""

import asyncio
import html
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from onefold.config.settings import Settings
from onefold.dashboard import explained
from onefold.operate.explain import explain as explaining
from onefold.processor.core.topology import Topology
from tests.support.explained import Explained, send
from tests.support.floor import Floor
from tests.support.merged import land
from tests.support.site import Site

HOSTILE = '<script>alert(1)</script>\x1b[31m\u202e"'


def test_each_row_leads_to_what_made_it(
    site: Site,
    floor: Floor,
    database: str,
    fresh_domain: Callable[..., Topology],
    client: dict[str, str],
    tmp_path: Path,
) -> None:
    """From the table by a link; the same as the command says."""
    campaigns = Explained(fresh_domain("campaigns"), client, database, tmp_path)
    campaigns.fold([send(1, 1, 100)], [send(1, 2, 200, subject=HOSTILE)])
    land(campaigns.topology, client, database)
    _, table = site.get("/tables/campaigns/sends")
    links = [html.unescape(link) for link in re.findall(r'href="(/explain/[^"]+)"', table)]

    assert links == [f"/explain/campaigns/sends?id=1&date=2021-12-0{day}+12%3A00%3A00" for day in (1, 2)]
    told = campaigns.explain("campaigns.totals", id="1")
    status, page = site.get("/explain/campaigns/totals?id=1")
    assert status == 200
    assert told.origin is not None
    for text in (told.origin, told.causes[0].record.where, told.history[1].causes[0].record.where, "sent_2", "200"):
        assert text in page, text
    assert page.count("by transaction ") == page.count("by a-sink at ") == 1
    assert len(told.history) == 2
    assert "onefold explain campaigns.totals id=1" in page
    assert "<script>" not in page
    ours = "\n\N{NARROW NO-BREAK SPACE}"
    assert not [char for char in page if not char.isprintable() and char not in ours]
    assert site.get(links[1])[0] == 200


def test_a_level_of_sums_has_a_link_too(site: Site, floor: Floor) -> None:
    """What stands for all is left out of it."""
    floor.land(200)
    _, table = site.get("/tables/trades/risk")
    links = [html.unescape(link) for link in re.findall(r'href="(/explain/[^"]+)"', table)]

    assert "/explain/trades/risk" in links
    assert site.get("/explain/trades/risk")[0] == 200
    assert any(re.fullmatch(r"/explain/trades/risk\?risk_type=\w+", link) for link in links)


@pytest.mark.long  # 8 s
def test_kafka_is_away(floor: Floor, database: str, tmp_path: Path) -> None:
    """The row and its origin are there all the same, with a sentence."""
    floor.connection.execute("INSERT INTO runner.stats VALUES (1, 2, 3, 100, 60000, 'runner.stats', 2, 1001)")
    away = Site(tmp_path, {"ONEFOLD_POSTGRES_DSN": database, "ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    try:
        status, page = away.get("/explain/runner/stats?run_id=1&user_id=2")
        assert status == 200
        assert "Kafka" in page
        assert "What is said here is what the database knows" in page
        assert "60000" in page
        assert "1001" in page
    finally:
        away.stop()


def test_what_is_not_there_is_a_sentence(site: Site) -> None:
    """With its status, and never a stack trace."""
    for address, status in (
        ("/explain/campaigns/totals?id=77", 404),
        ("/explain/campaigns/totals", 400),
        ("/explain/campaigns/totals?id=x", 400),
        ("/explain/campaigns/totals?id=%00", 400),
        ("/explain/campaigns/nothing?id=1", 400),
        ("/explain/pg_catalog/pg_authid?oid=10", 400),
        ("/explain/onefold/ledger?sink=x", 400),
        ("/explain/campaigns/totals?id=1&id=2&other=3", 400),
    ):
        found, page = site.get(address)
        assert found == status, page
        assert "role=" in page
    assert "Traceback" not in site.said()


def test_only_a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes then is asked to come again; one who waited too long is told, and the thread counts until it ends."""
    go_on = threading.Event()
    monkeypatch.setattr(explaining, "explain", lambda *_, **__: go_on.wait(20))
    monkeypatch.setattr(explained, "PAGE_S", 0.05)
    explainer = explained.Explainer(Settings(), "")

    async def ask() -> str:
        try:
            await explainer.explain("a.b", {})
        except explained.Busy as busy:
            return str(busy)
        return "explained"

    async def visit() -> list[str]:
        said = [*await asyncio.gather(*(ask() for _ in range(explained.ROWS_MAX + 1))), await ask()]
        go_on.set()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        return [*said, await ask()]

    said = asyncio.run(visit())
    assert [text.split()[0] for text in said] == ["This"] * explained.ROWS_MAX + ["Several", "Several", "explained"]
