"""The tables, page by page, and what the site answers to those who ask for something else."""

import json
import re
import urllib.parse

import psycopg

from tests.support.floor import Floor
from tests.support.site import ROOT, Site


def test_pages_follow_the_key_without_a_gap(site: Site, floor: Floor) -> None:
    """Forwards to the end, backwards to the beginning; each row once, with the record that last changed it."""
    floor.connection.execute(
        "INSERT INTO runner.stats SELECT run, run % 3, 1, 100, 60000, 'runner.stats', 2, 1000 + run"
        " FROM generate_series(1, 120) AS run"
    )
    forwards, address = [], "/tables/runner/stats"
    while address:
        _, text = site.get(address)
        forwards.append(re.findall(r"runner\.stats/2/(\d+)", text))
        found = re.search(r'rel="next" href="([^"]+)"', text)
        address = f"/tables/runner/stats{found.group(1).replace('&amp;', '&')}" if found else ""
    back = re.search(r'rel="prev" href="([^"]+)"', text)

    assert [len(page) for page in forwards] == [50, 50, 20]
    assert [int(offset) for page in forwards for offset in page] == list(range(1001, 1121))
    assert back is not None
    _, text = site.get(f"/tables/runner/stats{back.group(1)}")
    assert re.findall(r"runner\.stats/2/(\d+)", text) == forwards[1]


def test_a_page_can_begin_at_a_key(site: Site, floor: Floor) -> None:
    """What somebody types to find one row."""
    floor.connection.execute(
        "INSERT INTO campaigns.sends SELECT id, '2021-12-01', 5, 'A', 'b', 0, 'campaigns.accepted', 0, id"
        " FROM generate_series(1, 99) AS id"
    )
    _, text = site.get("/tables/campaigns/sends?from=77")

    assert re.findall(r"campaigns\.accepted/0/(\d+)", text)[0] == "77"
    assert ">From id</label>" in text


def test_all_tables_are_listed_and_open(site: Site, floor: Floor) -> None:
    """Those of every domain and the engine's own, views too; nothing else of the database."""
    floor.land(10)
    floor.judge("valid")
    _, text = site.get("/tables")
    links = re.findall(r'href="(/tables/[^"]+)"', text)

    assert {"/tables/runner/stats", "/tables/campaigns/totals_from_sends", "/tables/trades/current"} <= set(links)
    assert {"/tables/onefold/ledger", "/tables/onefold/verdict"} <= set(links)
    assert not [link for link in links if "pg_" in link]
    for link in links:
        assert site.get(link)[0] == 200, link


def test_what_is_not_there_is_one_sentence(site: Site) -> None:
    """With its status, and never a stack trace."""
    wrong = urllib.parse.quote(json.dumps(["1; DROP TABLE runner.stats", "x"]))
    for address, status in {
        "/nothing": 404,
        "/tables/pg_catalog/pg_authid": 404,
        "/tables/runner/nothing": 404,
        f"/tables/runner/stats?after={wrong}": 400,
        "/tables/runner/stats?after=[1": 400,
        "/tables/runner/stats?before=%5B%221%22%5D": 400,
        "/tables/runner/stats?skip=many": 400,
        "/tables/runner/stats?from=x": 400,
    }.items():
        found, text = site.get(address)
        assert (found, 'role="alert"' in text) == (status, True), address
    assert "Traceback" not in site.said()


def test_nobody_elses_page_can_ask(site: Site) -> None:
    """A name that resolves to this machine is not enough; nothing inline runs; nothing is kept by caches."""
    assert site.get("/", Host="elsewhere.example")[0] == 400
    assert site.get("/", Host="localhost")[0] == 200
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src" / "onefold" / "dashboard" / "templates").glob("*.html")
    )
    assert not re.search(r"<script(?! src)|<style|style=|\son\w+=|https?://", source)


def test_a_database_without_tables_is_no_error(database: str, site: Site) -> None:
    """Before `onefold migrate`: the page waits."""
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("DROP SCHEMA trades CASCADE; DROP SCHEMA runner CASCADE; DROP SCHEMA campaigns CASCADE")
        admin.execute(
            "DROP SCHEMA averages CASCADE; DROP SCHEMA bank CASCADE; DROP SCHEMA sheets CASCADE; DROP SCHEMA onefold CASCADE"
        )
    status, text = site.get("/")

    assert status == 200
    assert "No rows yet" in text
    assert "onefold migrate" in site.get("/tables")[1]
