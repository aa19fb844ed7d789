"""The live page in a real browser, over a real database that changes while it is open."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

import pytest
from selenium.webdriver.common.keys import Keys

from onefold.processor.core.topology import Topology
from onefold.stack.embedded import Infrastructure
from tests.support.floor import Floor
from tests.support.site import READERS, SOON_S, LivePage
from tests.support.waiting import eventually

LINKS_MAX = 30
TRADES = "/pipelines/trades"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>&amp;\'"%{{7*7}}'


def test_the_one_thing_first(page: LivePage, floor: Floor) -> None:
    """Two sums, exact to the last digit, their difference, and the judge's verdict."""
    floor.land(500)
    floor.report()
    floor.judge("valid", records=500)
    page.open(TRADES)

    total, trades = floor.connection.execute(
        "SELECT value, trades FROM trades.risk WHERE (risk_type, region, trade_desk) IS NULL"
    ).fetchone() or (None, None)
    page.soon(".compared h3", "Equal, and verified")
    assert page.text(".ours") == page.text(".rollup .expected") == f"{total:,.2f}"
    assert page.text(".difference dd") == "0.00"
    assert f"{trades:,} trades" in page.text(".rollup .sums")
    assert "All levels add up" in page.text(".adds-up")
    assert "valid" in page.text("#outcome")


def test_a_change_appears_by_itself(page: LivePage, floor: Floor) -> None:
    """And leaves the focus where it was."""
    floor.land(200)
    page.open(TRADES)
    page.ask("document.querySelector('.parts a').focus()")
    before = page.text(".ours")
    floor.land(200)

    eventually(lambda: page.text(".ours") != before, SOON_S, "the number changes")
    assert page.ask("document.activeElement === document.querySelector('.parts a')")
    assert page.text("#rate") != "0"


def test_drilling_down_by_clicks_and_back(page: LivePage, floor: Floor) -> None:
    """From the total to a leaf; each step has an address of its own, and adds up."""
    floor.land(500)
    page.open(TRADES)
    for name, below in (("Delta", "By region"), ("EMEA", "By trade desk"), ("Swaps", "The finest level")):
        parts = page.ask("[...document.querySelectorAll('.parts td[data-label=Pipeline]')].map(cell => cell.innerText)")
        assert sum(Decimal(part.replace(",", "").replace("\N{MINUS SIGN}", "-")) for part in parts) == _number(page)
        page.ask(f"[...document.querySelectorAll('.parts a')].find(link => link.innerText === {name!r}).click()")
        page.soon(".below", below)

    assert "risk_type=Delta&region=EMEA&trade_desk=Swaps" in page.driver.current_url
    eventually(
        lambda: page.text(".rollup .crumbs").split("\n")[-1].strip().endswith("Swaps"),
        SOON_S,
        "the last crumb is the level",
    )
    page.driver.back()
    page.soon(".below", "By trade desk")


def test_with_the_keyboard_alone(page: LivePage, floor: Floor) -> None:
    """The skip link comes first; arrows walk through the rows, into one and out of it."""
    floor.land(500)
    page.open(TRADES)
    page.press(Keys.TAB)
    assert page.ask("document.activeElement.className") == "skip"
    assert page.ask("document.activeElement.getBoundingClientRect().top") >= 0
    page.press(Keys.ENTER)
    eventually(lambda: page.ask("document.activeElement.id") == "main", SOON_S, "the focus is in the main part")
    for _ in range(LINKS_MAX):  # of the headline and of the list of pipelines
        page.press(Keys.TAB)
        if page.ask("document.activeElement.innerText") == "Delta":
            break
    assert page.ask("document.activeElement.innerText") == "Delta"
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.ARROW_DOWN)
    assert page.ask("document.activeElement.innerText") == "PV"
    page.press(Keys.ARROW_RIGHT)
    page.soon(".below", "By region")
    eventually(lambda: page.ask("document.activeElement.id") == "panel-1", SOON_S, "the focus is at the new level")
    page.press(Keys.ARROW_DOWN, Keys.ENTER)
    page.soon(".below", "By trade desk")
    assert page.ask("location.search") == "?of=1&risk_type=PV&region=AMER"
    page.press(Keys.ARROW_LEFT)
    page.soon(".below", "By region")


@pytest.mark.promise("wrong-sums-turn-red")
def test_sums_that_disagree_turn_red(
    page: LivePage, floor: Floor, fresh_domain: Callable[..., Topology], database: str
) -> None:
    """When nothing is on the way any more; and only then."""
    floor.land(300)
    floor.report(ago_s=60)
    fresh_domain("trades")  # nothing waits in its topics
    page.open(TRADES)
    page.soon(".compared h3", "Equal")
    good = page.colour(".compared h3")

    floor.add({("Delta", "EMEA", "Swaps"): [Decimal("0.01"), 0]})

    page.soon("h1", "trades differs from its producer")
    page.soon(".compared h3", "They differ")
    page.soon(".difference dd", "+0.01")
    eventually(lambda: "bad" in page.ask("document.querySelector('.compared').className"), SOON_S, "it is red")
    assert page.colour(".difference dd") == page.colour(".compared h3") == page.colour("h1") != good
    assert "All levels add up" in page.text(".adds-up")


def test_levels_that_do_not_add_up_are_seen(page: LivePage, floor: Floor) -> None:
    """In whatever level it is; and it is a rule of the pipeline."""
    floor.land(300)
    floor.report()
    page.open(TRADES)
    page.soon(".adds-up", "All levels add up")
    floor.connection.execute(
        "UPDATE trades.risk SET value = value + 0.000001 WHERE (risk_type, region, trade_desk) = ('PV', 'EMEA', 'Swaps')"
    )

    page.soon("h1", "trades breaks an invariant")
    assert "The levels do not add up" in page.text(".compared h3")
    assert "bad" in page.ask("document.querySelector('.adds-up').className")


def test_what_is_on_the_way_is_not_called_wrong(
    page: LivePage, floor: Floor, fresh_domain: Callable[..., Topology]
) -> None:
    """The producer's sums run ahead while it produces."""
    fresh_domain("trades")
    floor.land(300)
    floor.report()
    floor.connection.execute(
        "UPDATE trades.truth SET value = value + 1, trades = trades + 1, told_at = now() + interval '1 h'"
    )
    page.open(TRADES)

    page.soon(".compared h3", "trades on the way")
    assert "bad" not in page.ask("document.querySelector('.compared').className")


def test_a_verdict_of_invalid_is_the_first_thing(page: LivePage, floor: Floor) -> None:
    """Even when the sums are equal."""
    floor.land(300)
    floor.report()
    floor.judge("invalid", "1 difference from what follows from the input log")
    page.open(TRADES)

    page.soon("h1", "trades is wrong")
    page.soon(".detail", "1 difference from what follows from the input log.")


def test_the_database_goes_and_comes_back(page: LivePage, floor: Floor, infrastructure: Infrastructure) -> None:
    """The page shows it in one sentence, keeps the old numbers visibly old, and goes on by itself."""
    floor.land(300)
    page.open(TRADES)
    shown = page.text(".ours")
    infrastructure.postgres.kill()
    try:
        page.soon("#trouble", "The database does not answer")
        assert page.text(".ours") == shown
        assert page.ask("document.getElementById('update').classList.contains('stale')")
        page.soon("#state", "not up to date")
        assert page.site.get("/tables")[0] == 503
    finally:
        infrastructure.postgres.start()
        infrastructure.postgres.wait_ready()
    eventually(lambda: page.text("#trouble") == "", SOON_S, "the sentence goes")
    page.soon("#state", "live")
    assert not page.ask("document.getElementById('update').classList.contains('stale')")
    assert "Traceback" not in page.site.said()


@pytest.mark.parametrize("snapshot_s", [2.0])
def test_a_database_that_hangs_is_as_good_as_gone(page: LivePage, floor: Floor) -> None:
    """A stopped server process answers nothing and closes nothing: the page hangs up and connects again."""
    floor.land(300)
    page.open(TRADES)
    page.ask(_REMEMBER_TROUBLES)
    stopped: set[int] = set()
    try:
        # A connection that the dashboard has opened since then is stopped too: a busy browser may have missed the first trouble.
        eventually(
            lambda: _stop_backends(floor, stopped) and "does not answer" in page.ask("window.troubles.join()"),
            SOON_S,
            "the page shows it",
        )
        eventually(lambda: page.text("#trouble") == "", SOON_S, "a new connection serves")
        shown = page.text("#state")
        eventually(lambda: page.text("#state") != shown, SOON_S, "snapshots come again")
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_the_dashboard_goes_and_the_page_says_so(page: LivePage, floor: Floor) -> None:
    """What is shown is marked as old by the page itself."""
    floor.land(300)
    page.open(TRADES)
    page.expected.append("ERR_")  # the browser reports that the connection broke
    assert page.site.stop() == 0

    page.soon("#state", "connection lost")
    eventually(lambda: page.ask("document.getElementById('update').classList.contains('stale')"), SOON_S, "it is old")


def test_a_phone_needs_no_sideways_scrolling(page: LivePage, floor: Floor) -> None:
    """320 pixels; what can be wide scrolls by itself."""
    floor.land(500)
    floor.report()
    page.emulate(width=320, height=640)
    for address in (
        "/",
        TRADES,
        f"{TRADES}?risk_type=Delta&region=EMEA&trade_desk=Swaps",
        "/tables",
        "/tables/trades/risk",
    ):
        page.open(address)
        assert page.ask("document.documentElement.scrollWidth") <= 320, address
    page.open(TRADES)
    assert "Pipeline" in page.ask("getComputedStyle(document.querySelectorAll('.parts td')[2], '::before').content")


def test_dark_and_light_by_the_readers_setting(page: LivePage, floor: Floor) -> None:
    """The charts too: a canvas has its colours painted in, so it is painted again."""
    floor.land(300)
    page.emulate(prefers_color_scheme="light")
    page.open(TRADES)
    paper, chart = page.colour("html", "background-color"), page.ask(_STROKE)
    assert chart == page.colour(".parts a")
    page.emulate(prefers_color_scheme="dark")

    eventually(lambda: page.ask(_STROKE) != chart, SOON_S, "the chart has other colours")
    assert page.ask(_STROKE) == page.colour(".parts a")
    assert page.colour("html", "background-color") != paper
    page.emulate(prefers_reduced_motion="reduce")
    assert page.ask("getComputedStyle(document.querySelector('.share rect')).transitionDuration") in ("0s", "")


def test_no_barrier_that_a_program_can_find(page: LivePage, floor: Floor) -> None:
    """axe-core, all its rules, on every kind of page, light and dark, wide and narrow."""
    floor.land(300)
    floor.report()
    floor.judge("valid")
    page.expected.append("404")
    for scheme, width in READERS:
        page.emulate(width=width, prefers_color_scheme=scheme)
        for address in ("/", TRADES, f"{TRADES}?risk_type=PV", "/tables", "/tables/trades/risk", "/nothing"):
            page.open(address)
            assert page.barriers() == [], f"{address} {scheme} {width}"


def test_names_from_the_log_are_only_text(page: LivePage, floor: Floor) -> None:
    """A hostile producer names a region; it is read as it is written, in the page, its address and its tables."""
    floor.add({("Delta", HOSTILE, "Swaps"): [Decimal("1.5"), 1]})
    page.open(f"{TRADES}?risk_type=Delta")
    title = page.ask("document.title")
    assert page.rows() == [HOSTILE]
    page.ask("document.querySelector('.parts a').click()")
    page.soon(".below", "By trade desk")
    assert HOSTILE in page.text(".rollup .crumbs")
    page.soon(".ours", "1.50")
    assert page.ask("document.title") == title
    page.open("/tables/trades/risk")
    assert HOSTILE in page.text("table")
    assert page.ask("document.querySelectorAll('main img, main script').length") == 0


def test_digits_that_no_float_holds(page: LivePage, floor: Floor) -> None:
    """Numbers travel as text from Postgres to the eye."""
    floor.add({("Delta", "EMEA", "Swaps"): [Decimal("-900719925474099312345.000001"), 1]})
    page.open(TRADES)

    page.soon(".ours", "\N{MINUS SIGN}900,719,925,474,099,312,345.000001")


# Trouble that is over after a second is missed between two questions.
_REMEMBER_TROUBLES = """(window.troubles = [], new MutationObserver(() => {
    window.troubles.push(document.getElementById("trouble")?.innerText ?? "");
}).observe(document.getElementById("live"), { childList: true, subtree: true }))"""
# The colour that the throughput's line is drawn with, as the chart knows it.
_STROKE = "charts.strokes('plot-rate')[0]"


def _number(page: LivePage) -> Decimal:
    return Decimal(page.text(".ours").replace(",", "").replace("\N{MINUS SIGN}", "-"))


def _stop_backends(floor: Floor, stopped: set[int]) -> set[int]:
    """Stops the server processes of the dashboard's connections to this database, and adds them to `stopped`."""
    backends = floor.connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'onefold dashboard' AND datname = current_database()"
    ).fetchall()
    for (pid,) in backends:
        if pid not in stopped:
            os.kill(pid, signal.SIGSTOP)
            stopped.add(pid)
    return stopped
