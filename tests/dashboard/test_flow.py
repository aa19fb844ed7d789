"""Throughput and latency of pipelines without a table `landed`: by what the sink noted of its batches."""

import asyncio
import html
import math
import re
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from onefold.dashboard import flow
from onefold.dashboard.flow import Flow
from onefold.dashboard.panels import Reading
from onefold.dashboard.reader import Reader
from tests.support.floor import Floor
from tests.support.site import SOON_S, LivePage, Site
from tests.support.waiting import eventually

#: (seconds ago, seconds that the oldest took or None, offsets, records or None)
Noted = tuple[float, float | None, int, int | None]
_NOTE = """
INSERT INTO onefold.batch
SELECT %(sink)s, 'runner.stats', 0, 'id', %(at)s, %(at)s + %(offsets)s, %(records)s,
       (extract(epoch FROM landed) - %(took)s) * 1000, 'a-sink', landed
FROM (SELECT now() - make_interval(secs => %(ago)s) AS landed) AS given
"""


def note(connection: psycopg.Connection[Any], *batches: Noted, sink: str = "runner") -> None:
    for number, (ago, took, offsets, records) in enumerate(batches):
        given = {"ago": ago, "took": took, "offsets": offsets, "records": records}
        connection.execute(_NOTE, {**given, "sink": sink, "at": 1_000_000 * number})


def of_batches(dsn: str, sink: str = "runner", span_s: int = flow.SPAN_S) -> Flow | None:
    async def fetch() -> Flow | None:
        reader = Reader(dsn)
        try:
            async with reader.snapshot() as connection:
                return (await flow.fetch(connection, sink, None, Reading(), datetime.now(UTC), math.inf, span_s))[0]
        finally:
            await reader.close()

    return asyncio.run(fetch())


def test_each_record_counts_for_as_long_as_the_oldest_of_its_batch(floor: Floor, database: str) -> None:
    note(floor.connection, (10, 0.25, 99, 98), (15, 2.0, 9, 2), (90, 30.0, 5, 5))
    note(floor.connection, (10, 9.0, 9, 9), sink="campaigns")
    found = of_batches(database)
    assert found is not None
    assert not found.end_to_end
    assert (found.messages, found.a_second) == (100, 5.0)
    assert [found.p50, found.p99, found.worst] == pytest.approx([0.25, 2.0, 2.0], abs=0.01)
    assert found.mean == pytest.approx((98 * 0.25 + 2 * 2.0) / 100, abs=0.01)
    assert max(filter(None, found.p50s)) == pytest.approx(30.0, abs=0.01)
    assert max(found.rates) == 5.0


def test_what_was_not_counted_or_not_timed_is_not_made_up(floor: Floor, database: str) -> None:
    """Offsets stand for records that were added up, and no time for a batch whose oldest record is not known."""
    note(floor.connection, (10, None, 40, None))
    found = of_batches(database)
    assert found is not None
    assert (found.messages, found.p50, found.p99, found.mean, found.worst) == (40, None, None, None, None)
    assert not any(found.p50s)
    note(floor.connection, (11, 3.0, 10, None), sink="campaigns")
    note(floor.connection, (12, -5.0, 10, 10), (10, None, 1000, 1000), sink="bank")
    for sink, took, messages in (("campaigns", 3.0, 10), ("bank", 0.0, 1010)):  # the other clock was ahead
        found = of_batches(database, sink)
        assert found is not None
        assert [found.p50, found.p99, found.messages] == pytest.approx([took, took, messages], abs=0.01)


def test_without_notes_nothing_is_said(floor: Floor, database: str) -> None:
    """Before anything landed, of long ago, and where it may not be read or is not there."""
    assert of_batches(database) is None
    note(floor.connection, (3600, 1.0, 5, 5))
    assert of_batches(database) is None
    note(floor.connection, (10, 1.0, 5, 5), sink="bank")
    assert of_batches(database, "bank") is not None
    floor.connection.execute("REVOKE SELECT ON onefold.batch FROM onefold_reader")
    assert of_batches(database, "bank") is None
    floor.connection.execute("DROP TABLE onefold.batch")
    assert of_batches(database, "bank") is None


def test_the_page_says_what_its_latency_is(page: LivePage, site: Site, floor: Floor) -> None:
    note(floor.connection, (10, 0.5, 9, 7), (20, 1.5, 9, 3))
    note(floor.connection, (10, 0.5, 9, 7), sink="trades")
    floor.land(10)
    page.open("/pipelines/runner")
    page.soon(".figures", "Written to committed")
    assert "p50 at most" in page.text(".figures")
    assert "records" in page.text(".figures")
    page.soon(".flow", "From written by the processor to committed")
    assert "of 10 records in the last minute; each counts for as long as the oldest of its batch" in page.text(".flow")
    assert page.barriers() == []
    trades = site.get("/pipelines/trades")[1]
    assert "Produce to commit" in trades, "its panels declare a latency"
    assert "Written to committed" not in trades
    assert "From written" not in trades


def test_the_time_range_is_in_the_address(page: LivePage, site: Site, floor: Floor) -> None:
    """Of charts and batches, and in every link of the page that leads deeper into it."""
    note(floor.connection, (10, 0.5, 9, 7), (1500, 2.0, 60, 60))
    note(floor.connection, (10, 0.5, 9, 7), sink="trades")
    floor.land(50)
    page.open("/pipelines/runner")
    page.soon(".range", "the last 5")
    assert page.text(".range [aria-current]") == "5m"
    assert page.ask("document.querySelectorAll('#batches tbody tr').length") == 1
    page.ask("[...document.querySelectorAll('.range nav a')].find(link => link.innerText === '1h').click()")
    eventually(lambda: page.ask("location.search") == "?since=1h", SOON_S, "the range is in the address")
    page.soon(".range", "the last 60")
    assert page.text(".range [aria-current]") == "1h"
    assert page.ask("document.querySelectorAll('#batches tbody tr').length") == 2
    spans = "JSON.parse(document.getElementById('plot-rate').dataset.points)[0]"
    assert page.ask(f"{spans}.at(-1) - {spans}[0]") == 3600 - 25
    assert page.barriers() == []
    trades = html.unescape(site.get("/pipelines/trades?since=45m&risk_type=PV")[1])
    assert 'href="?since=1d&risk_type=PV#flow-title"' in trades
    assert 'aria-current="true">45m</a>' in trades
    assert re.search(r'href="\?since=45m&of=\d&risk_type=PV&region=\w+#', trades)
    for path in ("/pipelines/runner?since=soon", "/pipelines/runner/live?since=1y"):
        status, text = site.get(path)
        assert (status, "is no duration" in text) == (400, True)
    assert site.get("/pipelines/runner?since=99d")[0] == 200


def test_a_long_range_is_asked_for_less_often(floor: Floor, database: str) -> None:
    """It has no more points than a short one, and a second at most."""
    note(floor.connection, (10, 0.5, 9, 7), (80_000, 2.0, 60, 60))
    found = of_batches(database, span_s=86_400)
    assert found is not None
    assert (len(found.times), found.times[1] - found.times[0]) == (144, 600)
    assert next(round(rate * 600) for rate in found.rates if rate) == 60
