"""The panels of a pipeline on its page: each query read within a second, and its failure the panel's own."""

import asyncio
import itertools
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Literal

import pytest

from onefold.dashboard import panels
from onefold.dashboard.panels import NOT_YET, REST, ROWS_MAX, Bar, PanelContent, PanelReader, ShownPanel, bars, points
from onefold.dashboard.reader import TOO_LARGE, DatabaseReader
from onefold.dashboard.words import figure
from onefold.operate.panels import Panel, PanelRows, Stat, load
from onefold.pipelines import find
from tests.support.floor import Floor
from tests.support.site import READERS, SOON_S, LivePage, Site
from tests.support.waiting import eventually

NO_NUMBER = "A bar needs a label, and then a number."
NO_LINE = "A line needs a time, and then one or two numbers."
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
RUNS = (
    "INSERT INTO runner.stats SELECT run, 1 + run % 2, 1, 1000 * run, 300000 * run, 'runner.stats', 0, run"
    " FROM generate_series(1, 12) AS run"
)
TENDENCIES = (
    "INSERT INTO runner.tendency VALUES (1, 1, 1, 'well done', '', 'runner.tendency', 0, 1),"
    " (2, 1, 1, 'keep going', '', 'runner.tendency', 0, 2)"
)
SENDS = (
    "INSERT INTO campaigns.sends SELECT send, timestamp '2021-12-31 23:59' + send * interval '1 minute', send, '', '', 0,"
    " 'campaigns.accepted', 0, send FROM generate_series(0, 2) AS send"
)
TOTALS = (
    'INSERT INTO campaigns.totals (id, email, subject, date_1, sent_1, sends, changes, topic, partition, "offset")'
    " SELECT id, '', chr(65 + (id % 2)::int), '2021-12-01', 100 * id, 1, 1, 'campaigns.totals', 0, id"
    " FROM generate_series(1, 3) AS id"
)


ACCOUNTS = (
    "INSERT INTO bank.accounts SELECT account, 1, 1000.5, 1000.5, false, 'bank.entries', 0, account"
    " FROM generate_series(1, 3) AS account"
)
TRANSFER = "INSERT INTO bank.transfers VALUES (1, 1, 2, 0.75, NULL, NULL, DEFAULT, 'bank.entries', 0, 9)"


def figures(text: str) -> dict[str, str]:
    """By name, as they stand on the page."""
    (section,) = re.findall(r'<section class="panel stat".*?</section>', text, re.DOTALL)
    return dict(re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", section, re.DOTALL))


def chart(text: str, name: str) -> list[list[str]]:
    """Each bar of a chart on a page: label, share, and what stands beside."""
    (section,) = re.findall(f'<section class="panel bar" id="{name}".*?</section>', text, re.DOTALL)
    return [
        [re.sub("<.*?>", "", cell) or share(cell) for cell in re.findall("<t[hd].*?</t[hd]>", row, re.DOTALL)]
        for row in re.findall("<tr.*?</tr>", section, re.DOTALL)[1:]
    ]


def share(cell: str) -> str:
    """How long its bar is, in percent."""
    (found,) = re.findall('rect width="(.*?)"', cell)
    return str(found)


def test_the_longest_runs_and_how_runners_do_are_drawn_on_their_page(site: Site, floor: Floor) -> None:
    for statement in (RUNS, TENDENCIES):
        floor.connection.execute(statement)
    _, text = site.get("/pipelines/runner")
    bars = chart(text, "panel-1")

    assert bars[0] == ["runner 1, run 12", "100.0", "12,000", "5.00", "well done"]
    assert bars[1] == ["runner 2, run 11", "91.7", "11,000", "5.00", "keep going"]
    assert len(bars) == 10
    assert chart(text, "panel-2") == [["keep going", "100.0", "1", "0"], ["well done", "100.0", "1", "0"]]
    assert 'id="panel-' not in site.get("/pipelines/sheets")[1]


def test_campaigns_are_drawn_by_subject_and_by_month(site: Site, floor: Floor) -> None:
    for statement in (TOTALS, SENDS):
        floor.connection.execute(statement)
    _, text = site.get("/pipelines/campaigns")

    assert chart(text, "panel-1") == [["A", "100.0", "200", "200", "1"], ["B", "100.0", "200", "400", "2"]]
    assert chart(text, "panel-2") == [["2021-12", "0.0", "0", "0"], ["2022-01", "100.0", "3", "2"]]


def test_a_chart_moves_while_somebody_looks_and_anybody_can_read_it(page: LivePage, floor: Floor) -> None:
    runs = "document.querySelectorAll('#panel-1 tbody tr').length"
    page.open("/pipelines/runner")
    page.soon("#panel-1", "No rows here yet.")
    floor.connection.execute(RUNS)
    floor.connection.execute(TENDENCIES)
    eventually(lambda: page.ask(runs) == 10, SOON_S, "the ten longest of twelve")
    for scheme, width in READERS:
        page.emulate(width, prefers_color_scheme=scheme)
        page.open("/pipelines/runner")
        assert page.ask(runs) == 10
        assert page.barriers() == []


AVERAGES = (
    "INSERT INTO averages.averages SELECT 'a', timestamptz '2026-01-01 00:00Z' + n * interval '1 minute', n, n, n % 2,"
    " 'averages.averages', 0, n FROM generate_series(1, 3) AS n"
)


def test_averages_are_a_line_a_table_and_a_figure(page: LivePage, floor: Floor) -> None:
    """The line is drawn, its numbers are in a table too, and anybody can read all of it."""
    floor.connection.execute(AVERAGES)
    for scheme, width in READERS:
        page.emulate(width, prefers_color_scheme=scheme)
        page.open("/pipelines/averages")
        page.soon("#panel-2", "2026-01-01 00:03:00")
        eventually(lambda: page.ask("document.querySelectorAll('#panel-1 canvas').length") == 1, SOON_S, "it is drawn")
        page.ask("document.querySelector('#panel-1 summary').click()")
        assert "2026-01-01 00:03:00" in page.text("#panel-1 table")
        assert page.ask("charts.strokes('panel-1-plot').length") == 2
        page.soon("#panel-3", "0")
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.barriers() == []


def test_the_money_is_shown_beside_what_is_expected(site: Site, floor: Floor) -> None:
    """All of one snapshot, exact."""
    with floor.connection.transaction():
        floor.connection.execute(ACCOUNTS)
        floor.connection.execute("UPDATE bank.accounts SET balance = balance - 0.75 WHERE account = 1")
        floor.connection.execute(TRANSFER)
    _, text = site.get("/pipelines/bank")
    assert figures(text) == {
        "Balances": "3,000.75", "In flight": "0.75", "Total": "3,001.50", "Opened": "3,001.50", "On their way": "1",
    }  # fmt: skip
    assert text.count("as expected") == 1
    assert '<li class="good">All 3 invariants hold</li>' in text

    floor.connection.execute("UPDATE bank.accounts SET balance = balance + 1 WHERE account = 1")
    _, text = site.get("/pipelines/bank")
    assert '<span class="mark bad">expected 3,001.50</span>' in text


def test_the_home_has_one_line_for_each_pipeline(site: Site, floor: Floor) -> None:
    floor.land(30)
    floor.connection.execute(ACCOUNTS)
    _, text = site.get("/")
    assert 'class="panel' not in text
    assert '<a href="/pipelines/trades">trades</a>' in text


class Asker:
    """Reads panels; between two readings a clock of its own may go on."""

    def __init__(self, dsn: str, *panels: Panel, clock: Callable[[], float] | None = None) -> None:
        self.clock = 0.0
        self._dsn = dsn
        self._panels = panels
        self._reading = PanelReader(clock or (lambda: self.clock))
        self._asked = 0

    def ask(self) -> list[ShownPanel]:
        """Those of a snapshot of its own."""
        return asyncio.run(self._ask())

    async def _ask(self) -> list[ShownPanel]:
        reader = DatabaseReader(self._dsn)
        self._asked += 1
        at = FIRST + timedelta(seconds=self._asked)
        try:
            async with reader.snapshot() as connection:
                found = await self._reading.fetch(connection, "runner", self._panels, {}, at, self._reading.ends())
                ((left,),) = await (await connection.execute("SHOW statement_timeout")).fetchall()
                assert left == "4s", "a query after the panels has as long as before"
                return found
        finally:
            await reader.close()


def rows(kind: Literal["bar", "table", "line"], query: str) -> PanelRows:
    """A panel of that query."""
    return PanelRows(kind=kind, title=query, query=query)


@pytest.mark.slow  # waits for a time-out
def test_a_query_that_takes_long_or_does_not_work_costs_its_own_panel_alone(floor: Floor, database: str) -> None:
    floor.connection.execute(RUNS)
    asker = Asker(
        database,
        *load(find()["runner"]).panel[:1],
        rows("bar", "SELECT 'a' AS label, 1 AS n, pg_sleep(3)::text AS s"),
        rows("bar", "SELECT 'a' AS label, 1 / (count(*) - 12) AS n FROM runner.stats"),
        rows("bar", "SELECT 'a' AS label, 'b' AS n"),
        rows("bar", "SELECT 'a' AS label, 'NaN'::numeric AS n"),
        rows("bar", "SELECT n, -n AS below FROM generate_series(1, 50) AS n -- descending"),
        rows("line", "SELECT 'a' AS label, 1 AS n"),
        rows("line", "SELECT now() AS at, 1 AS a, 2 AS b, 3 AS c"),
        rows("table", "DELETE FROM runner.stats RETURNING *"),
        rows("table", "SELECT 'infinity'::timestamptz"),
        Stat(kind="stat", title="s", query="SELECT 1 AS a", expected="SELECT 1 AS b"),
    )
    found = asker.ask()

    assert [one.trouble for one in found] == [
        "", TOO_LARGE, "The query does not work: division by zero.", NO_NUMBER, NO_NUMBER, "", NO_LINE, NO_LINE,
        'The query does not work: syntax error at or near "FROM".',
        "The query does not work: timestamp too large (after year 10K): 'infinity'.",
        "The query has no column b, for which a value is expected.",
    ]  # fmt: skip
    first, many = found[0].content, found[5].content
    assert isinstance(first, PanelContent)
    assert isinstance(many, PanelContent)
    assert len(first.rows) == 10
    assert [bar.share for bar in bars(many)] == [0.0] * ROWS_MAX["bar"]

    asker.clock = 59.0
    assert [one.number for one in asker.ask() if one.taken_at == FIRST + timedelta(seconds=1)] == [2]
    asker.clock = 61.0
    assert all(one.taken_at == FIRST + timedelta(seconds=3) for one in asker.ask())


def test_a_query_over_a_large_table_is_asked_less_often(floor: Floor, database: str) -> None:
    """It takes a second by this clock, which goes on by one whenever it is looked at."""
    moments = itertools.count()
    asker = Asker(database, rows("table", "SELECT 1 AS a"), clock=lambda: float(next(moments)))
    (first,) = asker.ask()
    seen = [asker.ask()[0].taken_at for _ in range(REST)]

    assert seen[0] == first.taken_at, "what was said before"
    assert seen[-1] != seen[0], "and asked again, in the end"


def test_what_does_not_fit_into_a_snapshot_comes_with_the_next_one(
    floor: Floor, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "BUDGET_S", 0.3)
    asker = Asker(
        database, *(rows("table", f"SELECT pg_sleep(0.2)::text AS a{n}") for n in range(3)), clock=time.monotonic
    )
    assert [one.trouble for one in asker.ask()] == ["", "", NOT_YET]
    assert [one.trouble for one in asker.ask()] == ["", "", ""]


def test_how_points_and_bars_are_drawn() -> None:
    table = PanelContent(("at", "n"), [(FIRST, Decimal("1.5")), (FIRST.date(), None), (7, 2)])
    assert points(table) == [[FIRST.timestamp(), FIRST.timestamp(), 7.0], [1.5, None, 2.0]]
    assert bars(PanelContent(("a", "n"), [("x", 4), ("y", 1)])) == [Bar("x", 100.0, (4,)), Bar("y", 25.0, (1,))]


def test_how_anything_is_written() -> None:
    assert figure(datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == "2026-01-01 00:00:00"
    values = (None, 1234, Decimal("-1234.50"), 0.5, True, "<b>")
    assert [figure(value) for value in values] == [
        "\N{EM DASH}",
        "1,234",
        "\N{MINUS SIGN}1,234.50",
        "0.5",
        "True",
        "<b>",
    ]
