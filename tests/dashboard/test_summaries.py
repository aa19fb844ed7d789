"""What a pipeline wants to be seen first: a view of one row, and whether its rules hold."""

import re

from onefold.dashboard.summaries import Figure
from tests.support.floor import Floor
from tests.support.site import Site

ACCOUNTS = (
    "INSERT INTO bank.accounts SELECT account, 1, 1000.5, 1000.5, false, 'bank.entries', 0, account"
    " FROM generate_series(1, 3) AS account"
)
TRANSFER = "INSERT INTO bank.transfers VALUES (1, 1, 2, 0.75, NULL, NULL, DEFAULT, 'bank.entries', 0, 9)"


def figures(text: str) -> dict[str, str]:
    """By name, as they stand on the page."""
    (section,) = re.findall(r'<section class="summary".*?</section>', text, re.DOTALL)
    return dict(re.findall(r"<dt>(.*?)</dt>\s*<dd[^>]*>(.*?)</dd>", section, re.DOTALL))


def test_balances_money_in_flight_and_the_total_stand_on_the_live_page(site: Site, floor: Floor) -> None:
    """All of one snapshot, exact; the rules are asked in it too."""
    with floor.connection.transaction():
        floor.connection.execute(ACCOUNTS)
        floor.connection.execute("UPDATE bank.accounts SET balance = balance - 0.75 WHERE account = 1")
        floor.connection.execute(TRANSFER)
    _, text = site.get("/")

    assert figures(text) == {
        "Balances": "3,000.75", "In flight": "0.75", "Total": "3,001.50", "Opened": "3,001.50", "On their way": "1",
    }  # fmt: skip
    assert '<li class="good">All 3 invariants hold</li>' in text
    assert "breaks an invariant" not in text


def test_a_broken_rule_comes_before_all_else(site: Site, floor: Floor) -> None:
    floor.land(10)
    floor.connection.execute(ACCOUNTS)
    floor.connection.execute("UPDATE bank.accounts SET balance = -2 WHERE account = 2")
    _, text = site.get("/")

    assert '<a href="/pipelines/bank">bank</a> breaks an invariant</h1>' in text
    assert '<li class="bad">bank.no_debt: account 2, entries 1, balance -2.00</li>' in text
    assert '<li class="bad">bank.total: balances ' in text


def test_the_rules_of_a_pipeline_without_a_summary_are_asked_too(site: Site, floor: Floor) -> None:
    """Nothing is shown of them while they hold."""
    floor.land(10)
    _, text = site.get("/")
    assert "breaks an invariant" not in text
    assert '<h2 id="summary-1">Bank</h2>' in text
    assert 'id="summary-2"' not in text

    floor.connection.execute("UPDATE trades.risk SET value = value + 1 WHERE region IS NULL AND risk_type IS NOT NULL")
    _, text = site.get("/")
    assert '<a href="/pipelines/trades">trades</a> breaks an invariant</h1>' in text
    assert '<li class="bad">trades.levels_add_up: name risk type, value ' in text


def test_a_rule_that_cannot_be_asked_spoils_no_other(site: Site, floor: Floor) -> None:
    """It is told like a broken one, and the rest of the page is as always."""
    floor.connection.execute(ACCOUNTS)
    floor.connection.execute("DROP INDEX bank.in_flight; ALTER TABLE bank.transfers RENAME returned TO came_back")
    status, text = site.get("/")

    assert status == 200
    assert "bank.settled_in_full: the query does not work: column" in text
    assert figures(text)["Total"] == "3,001.50"


def test_a_schema_with_such_a_view_and_no_pipeline_is_shown_without_rules(site: Site, floor: Floor) -> None:
    floor.connection.execute("DROP SCHEMA bank CASCADE; CREATE SCHEMA other")
    floor.connection.execute(
        "CREATE VIEW other.summary AS SELECT 'well'::text AS state, 12345 AS parts, NULL::int AS none"
    )
    floor.connection.execute("GRANT USAGE ON SCHEMA other TO PUBLIC; GRANT SELECT ON other.summary TO PUBLIC")
    _, text = site.get("/")

    assert figures(text) == {"State": "well", "Parts": "12,345", "None": "\N{EM DASH}"}
    assert "invariants hold" not in text


def test_how_a_figure_is_written() -> None:
    assert [Figure("x", value).kind for value in (1, True, "a", None)] == ["whole", "text", "text", "text"]
