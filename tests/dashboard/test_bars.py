"""Charts of a pipeline's own: a view, drawn as bars."""

import asyncio
import itertools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from onefold.dashboard.bars import REST, ROWS_MAX, TOO_LARGE, Chart, Charts
from onefold.dashboard.reader import Reader
from onefold.dashboard.words import figure
from tests.support.floor import Floor
from tests.support.site import READERS, SOON_S, LivePage, Site
from tests.support.waiting import eventually

NO_NUMBER = "The view needs a label, and then a number."
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


def chart(text: str, name: str) -> list[list[str]]:
    """Each bar of a chart on a page: label, share, and what stands beside."""
    (section,) = re.findall(f'<section class="bars" id="{name}".*?</section>', text, re.DOTALL)
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
    bars = chart(text, "chart_1_longest_runs")

    assert bars[0] == ["runner 1, run 12", "100.0", "12,000", "5.00", "well done"]
    assert bars[1] == ["runner 2, run 11", "91.7", "11,000", "5.00", "keep going"]
    assert len(bars) == 10
    assert chart(text, "chart_2_tendency") == [["keep going", "100.0", "1", "0"], ["well done", "100.0", "1", "0"]]
    assert "chart_" not in site.get("/pipelines/sheets")[1]


def test_campaigns_are_drawn_by_subject_and_by_month(site: Site, floor: Floor) -> None:
    for statement in (TOTALS, SENDS):
        floor.connection.execute(statement)
    _, text = site.get("/pipelines/campaigns")

    assert chart(text, "chart_1_subjects") == [["A", "100.0", "200", "200", "1"], ["B", "100.0", "200", "400", "2"]]
    assert chart(text, "chart_2_months") == [["2021-12", "0.0", "0", "0"], ["2022-01", "100.0", "3", "2"]]


def test_a_chart_moves_while_somebody_looks_and_anybody_can_read_it(page: LivePage, floor: Floor) -> None:
    runs = "document.querySelectorAll('#chart_1_longest_runs tbody tr').length"
    page.open("/pipelines/runner")
    page.soon("#chart_1_longest_runs", "No rows here yet.")
    floor.connection.execute(RUNS)
    floor.connection.execute(TENDENCIES)
    eventually(lambda: page.ask(runs) == 10, SOON_S, "the ten longest of twelve")
    for scheme, width in READERS:
        page.emulate(width, prefers_color_scheme=scheme)
        page.open("/pipelines/runner")
        assert page.ask(runs) == 10
        assert page.barriers() == []


class Asker:
    """Asks for the charts of a schema; between two questions a clock of its own may go on."""

    def __init__(self, dsn: str, clock: Callable[[], float] | None = None) -> None:
        self.clock = 0.0
        self._dsn = dsn
        self._charts = Charts(clock or (lambda: self.clock))
        self._asked = 0

    def ask(self, schema: str) -> list[Chart]:
        """Those of a snapshot of its own."""
        return asyncio.run(self._ask(schema))

    async def _ask(self, schema: str) -> list[Chart]:
        reader = Reader(self._dsn)
        self._asked += 1
        try:
            async with reader.snapshot() as connection:
                found = await self._charts.fetch(connection, schema, FIRST + timedelta(seconds=self._asked))
                ((left,),) = await (await connection.execute("SHOW statement_timeout")).fetchall()
                assert left == "4s", "what is asked after it has as long as before"
                return found
        finally:
            await reader.close()


@pytest.mark.slow  # waits for a time-out
def test_a_view_that_takes_long_or_does_not_work_costs_its_own_chart_alone(floor: Floor, database: str) -> None:
    floor.connection.execute(RUNS)
    floor.connection.execute(
        "CREATE VIEW runner.chart_3_slow AS SELECT 'a' AS label, 1 AS n, pg_sleep(3)::text AS s;"
        " CREATE VIEW runner.chart_4_wrong AS SELECT 'a' AS label, 1 / (count(*) - 12) AS n FROM runner.stats;"
        " CREATE VIEW runner.chart_5_texts AS SELECT 'a' AS label, 'b' AS n;"
        " CREATE VIEW runner.chart_5_endless AS SELECT 'a' AS label, 'NaN'::numeric AS n;"
        " CREATE VIEW runner.chart_6_many AS SELECT n, -n AS below FROM generate_series(1, 50) AS n"
    )
    asker = Asker(database)
    charts = {one.name: one for one in asker.ask("runner")}

    assert [chart.trouble for chart in charts.values()] == [
        "", "", TOO_LARGE, "The view does not work: division by zero.", NO_NUMBER, NO_NUMBER, "",
    ]  # fmt: skip
    assert len(charts["chart_1_longest_runs"].bars) == 10
    assert charts["chart_6_many"].title == "chart_6_many"
    assert [bar.share for bar in charts["chart_6_many"].bars] == [0.0] * ROWS_MAX

    asker.clock = 59.0
    again = {one.name: one.taken_at for one in asker.ask("runner")}
    assert [name for name, at in again.items() if at == FIRST + timedelta(seconds=1)] == ["chart_3_slow"]
    asker.clock = 61.0
    assert all(one.taken_at == FIRST + timedelta(seconds=3) for one in asker.ask("runner"))


def test_a_view_over_a_large_table_is_asked_less_often(floor: Floor, database: str) -> None:
    """It takes two seconds by this clock, which goes on by one whenever it is looked at."""
    moments = itertools.count()
    asker = Asker(database, lambda: float(next(moments)))
    assert {one.name for one in asker.ask("campaigns")} == {"chart_1_subjects", "chart_2_months"}
    seen = [{one.taken_at for one in asker.ask("campaigns")} for _ in range(REST)]

    assert seen[0] == {FIRST + timedelta(seconds=1)}, "what was said before"
    assert seen[-1] != seen[0], "and asked again, in the end"


def test_how_anything_is_written() -> None:
    values = (None, 1234, Decimal("-1234.50"), 0.5, True, "<b>")
    assert [figure(value) for value in values] == [
        "\N{EM DASH}",
        "1,234",
        "\N{MINUS SIGN}1,234.50",
        "0.5",
        "True",
        "<b>",
    ]
