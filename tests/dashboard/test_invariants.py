"""The invariants of every pipeline, asked in each snapshot."""

from tests.dashboard.test_panels import ACCOUNTS, figures
from tests.support.floor import Floor
from tests.support.site import Site


def test_a_broken_invariant_comes_before_all_else(site: Site, floor: Floor) -> None:
    floor.land(10)
    floor.connection.execute(ACCOUNTS)
    floor.connection.execute("UPDATE bank.accounts SET balance = -2 WHERE account = 2")
    _, text = site.get("/")
    assert '<a href="/pipelines/bank">bank</a> breaks an invariant</h1>' in text

    _, text = site.get("/pipelines/bank")
    assert '<li class="bad">bank.no_debt: account 2, entries 1, balance -2.00</li>' in text
    assert '<li class="bad">bank.total: balances ' in text


def test_the_invariants_of_a_pipeline_are_on_its_own_page(site: Site, floor: Floor) -> None:
    floor.land(10)
    assert "breaks an invariant" not in site.get("/")[1]
    assert '<li class="good">The invariant holds</li>' in site.get("/pipelines/trades")[1]
    assert 'id="invariants"' not in site.get("/pipelines/runner")[1]

    floor.connection.execute("UPDATE trades.risk SET value = value + 1 WHERE region IS NULL AND risk_type IS NOT NULL")
    assert '<a href="/pipelines/trades">trades</a> breaks an invariant</h1>' in site.get("/")[1]
    assert '<li class="bad">trades.levels_add_up: name risk type, value ' in site.get("/pipelines/trades")[1]


def test_an_invariant_that_cannot_be_asked_leaves_the_rest_of_the_page(site: Site, floor: Floor) -> None:
    """It is reported like a broken one."""
    floor.connection.execute(ACCOUNTS)
    floor.connection.execute("DROP INDEX bank.in_flight; ALTER TABLE bank.transfers RENAME returned TO came_back")
    status, text = site.get("/pipelines/bank")

    assert status == 200
    assert "bank.settled_in_full: the query does not work: column" in text
    assert figures(text)["Total"] == "3,001.50"
