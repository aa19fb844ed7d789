"""The page of one pipeline: what it says, the way of its records, and that anybody can read it."""

import asyncio
import html
import json
import math
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import Producer

from onefold.config import stack_state
from onefold.config.settings import Settings
from onefold.dashboard import batches
from onefold.dashboard.batches import SLOT_S, Slot
from onefold.dashboard.dead import SELDOM_S, DeadCounts
from onefold.dashboard.history import History
from onefold.dashboard.panels import Reading
from onefold.dashboard.pipeline_view import BOXES_MAX, Box, Stage
from onefold.dashboard.reader import Reader
from onefold.dashboard.standing import Dead
from onefold.operate import positions
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.dead_letters import REASON_HEADER
from tests.dashboard.test_flow import note
from tests.support.floor import Floor
from tests.support.processes import instance
from tests.support.site import READERS, SOON_S, LivePage, Site
from tests.support.waiting import eventually

HOSTILE = '<img src=x onerror="document.title=1">\u202e'
#: As people see it.
SHOWN = HOSTILE.replace("\u202e", "\\u202e")
FOUND = {
    "kinds": [["different row", 1]],
    "first": [
        {"kind": "different row", "where": "runner.stats", "key": f"user {HOSTILE}", "what": "speed: 1, should be 2",
         "output": "runner.stats/0/5", "source": None},
    ],
}  # fmt: skip


@pytest.fixture
def refused(fresh_domain: Callable[..., Topology], client: dict[str, str]) -> Iterator[Callable[..., None]]:
    """Writes dead letters of runner."""
    topology = fresh_domain("runner")

    def write(*reasons: str) -> None:
        producer = Producer(client)
        for reason in reasons:
            producer.produce(
                topology.dead["runner.updates"], b"no run", b"1", partition=0, headers={REASON_HEADER: reason.encode()}
            )
        assert producer.flush(20) == 0

    yield write
    fresh_domain("runner")


def wrong(connection: psycopg.Connection[Any]) -> None:
    """The last verify found runner wrong."""
    connection.execute(
        "INSERT INTO onefold.verdict (domain, outcome, reason, counts, offsets, findings, judged_at)"
        " VALUES ('runner', 'invalid', '1 difference', '{}', '{}', %s, now())", (json.dumps(FOUND),),
    )  # fmt: skip
    connection.execute("INSERT INTO runner.stats VALUES (1, 2, 3, 100, 60000, 'runner.stats', 0, 5)")


def stack(home: Path) -> None:
    """A stack runs, and a processor was killed a moment ago."""
    me = {"supervisor_pid": os.getpid(), "create_time": psutil.Process().create_time()}
    log = home / "logs" / "processor-runner-1.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text(f"folding 7 records\n{HOSTILE}\n", encoding="utf-8")
    end = {"why": "was killed by signal 9", "at": time.time() - 5, "log_at": log.stat().st_size}
    with log.open("a", encoding="utf-8") as after:
        after.write("task runs again\n")
    killed = {"state": "running", "restarts": 2, "last_end": end, "log": str(log)}
    other: dict[str, Any] = {"state": "running", "restarts": 0, "last_end": None}
    services = {
        "sink-1": other,
        "processor-runner-1": killed,
        "processor-runner-up-1": killed,
        "processor-trades-1": other,
        "auditor-runner": other,
        "auditor-trades": other,
    }
    stack_state.write(home / "run" / "stack.json", me | {"services": services})


def test_all_that_is_known_of_it(page: LivePage, floor: Floor, refused: Callable[..., None], tmp_path: Path) -> None:
    """Live, readable for everybody, on a phone without sideways scrolling; and names are only text."""
    wrong(floor.connection)
    stack(tmp_path)
    refused("no run", "no run", HOSTILE)
    for scheme, width in READERS:
        page.emulate(width=width, prefers_color_scheme=scheme)
        page.open("/pipelines/runner")
        page.soon("h1", "runner is wrong")
        page.soon(".more", "runner has 3 dead letters")
        assert "processor-runner-1 was killed by signal 9" in page.text(".more")
        assert "processor-runner-up-1" not in page.text("main")
        assert "auditor-runner" in page.text(".processes")
        assert "auditor-trades" not in page.text("main")
        page.ask("document.querySelector('.processes summary').click()")
        assert page.text(".said").startswith(f"folding 7 records\n{SHOWN}\ntask runs again")
        page.soon(".refused", SHOWN)
        assert "speed: 1, should be 2" in page.text(".found")
        page.soon(".filled", "runner.stats about 1 row")
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.ask("document.querySelectorAll('main img').length") == 0
        assert page.barriers() == []
    page.open("/")
    page.soon("h1", "runner is wrong")
    page.ask("document.querySelector('h1 a').click()")
    eventually(lambda: page.ask("location.pathname") == "/pipelines/runner", SOON_S, "the headline leads to its page")


def test_a_wide_table_says_that_it_goes_on(page: LivePage, floor: Floor) -> None:
    """By a shadow at the edge that it goes beyond; the paper that covers the shadow scrolls with the table."""
    floor.land(10)
    page.emulate(width=320, height=640)
    page.open("/tables/trades/risk")
    assert page.ask("(wide => wide.scrollWidth > wide.clientWidth)(document.querySelector('div.wide'))")
    assert page.colour("div.wide", "background-attachment") == "local, local, scroll, scroll"
    assert page.barriers() == []


def test_what_may_not_be_read_or_is_not_there_yet_is_left_out(site: Site, floor: Floor) -> None:
    wrong(floor.connection)
    assert "/tables/runner/stats" in site.get("/pipelines/runner")[1]
    floor.connection.execute("REVOKE ALL ON runner.stats FROM onefold_reader")
    status, text = site.get("/pipelines/runner")
    assert (status, "/tables/runner/stats" in text, "/tables/runner/messages" in text) == (200, False, True)
    floor.connection.execute("REVOKE USAGE ON SCHEMA runner FROM onefold_reader")
    status, text = site.get("/pipelines/runner")
    assert (status, "There is none to see." in text, "speed: 1" in text) == (200, True, True)
    # And a database of before there were findings, and before it was said what was compared.
    floor.connection.execute("ALTER TABLE onefold.verdict DROP COLUMN findings, DROP COLUMN coverage")
    status, text = site.get("/pipelines/runner")
    assert (status, "What it was is not kept" in text, "Compared:" in text) == (200, True, False)


def test_it_says_what_was_compared_and_what_nobody_judges(site: Site, floor: Floor) -> None:
    """Of an older verdict nothing is known."""
    wrong(floor.connection)
    assert "Compared:" not in site.get("/pipelines/runner")[1]
    begins = {"runner.updates": {"0": 0, "1": 7}}
    covered = {"from": {}, "outputs": 1234, "rows": 5, "not_judged": [["runner.extra", HOSTILE], ["runner.x", ""]]}
    floor.connection.execute("UPDATE onefold.verdict SET coverage = %s", (json.dumps(covered),))
    text = html.unescape(site.get("/pipelines/runner")[1])
    assert "Compared: 1,234 output records and 5 rows. Read from the beginning of the log." in text
    named = f"<code>runner.extra</code> ({SHOWN}); <code>runner.x</code> (the model does not say why)."
    assert f"Not judged: {named}" in text
    covered |= {"from": begins, "uncompared": 3}
    floor.connection.execute("UPDATE onefold.verdict SET coverage = %s", (json.dumps(covered),))
    text = html.unescape(site.get("/pipelines/runner")[1])
    assert "5 rows; 3 output records could not be compared." in text
    assert "Read from offset 7 of <code>runner.updates/1</code>, else from the beginning of the log." in text


def test_a_row_is_found_by_its_key(site: Site, floor: Floor) -> None:
    """The form of a table leads to what made the row; what is left empty is NULL, as of a level that stands for all. What is not
    there, a row or a pipeline, is a sentence.
    """
    floor.land(50)
    wrong(floor.connection)
    form = re.search(r'<form class="tools find".*?</form>', site.get("/tables/runner/stats")[1], re.DOTALL)
    assert form is not None
    assert re.findall(r'name="(\w+)"', form.group()) == ["run_id", "user_id"]
    with urllib.request.urlopen(f"{site.url}/find/runner/stats?run_id=1&user_id=2", timeout=30) as answer:
        assert answer.url == f"{site.url}/explain/runner/stats?run_id=1&user_id=2"
        assert "60000" in answer.read().decode()
    with urllib.request.urlopen(f"{site.url}/find/trades/risk?risk_type=PV&region=&trade_desk=", timeout=30) as answer:
        assert answer.url == f"{site.url}/explain/trades/risk?risk_type=PV"
    assert site.get("/find/runner/stats?run_id=7&user_id=7")[0] == 404
    assert "tools find" not in site.get("/tables/onefold/ledger")[1]
    for path in ("/pipelines/nothing", "/pipelines/nothing/live", "/pipelines/%3Cb%3E"):
        status, text = site.get(path)
        assert (status, "There is no pipeline" in text, "<b>" in text) == (404, True, False)


def test_dead_letters_are_read_only_when_some_have_come(
    refused: Callable[..., None], bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seldom where they are many, or nobody would see that they were put back; and not at all where they are very many."""
    now = [0.0]
    counts = DeadCounts(Settings(bootstrap_servers=bootstrap_servers), lambda: now[0])
    read: list[str] = []
    count = DeadCounts._count

    def noted(self: DeadCounts, name: str, offsets: int) -> Dead | None:
        read.append(name)
        return count(self, name, offsets)

    monkeypatch.setattr(DeadCounts, "_count", noted)

    def told(count: int, *reasons: tuple[str, int], exact: bool = True) -> None:
        """Kafka may be too busy to answer, and what was known stays."""

        def known() -> tuple[int, bool, list[tuple[str, int]]] | None:
            dead = counts.look().get("runner")
            return (
                None if dead is None else (dead.count, dead.exact, [(one.reason, one.count) for one in dead.failures])
            )

        eventually(lambda: known() == (count, exact, [*reasons]), 30, f"runner has {count}")

    told(0)
    refused("no run", "no key", "no run")
    told(3, ("no run", 2), ("no key", 1))
    asked = read.count("runner")
    assert counts.look()["runner"].count == 3
    assert read.count("runner") == asked
    monkeypatch.setattr("onefold.dashboard.dead.READ_MAX", 3)
    refused("no run")
    told(4, ("no run", 3), ("no key", 1))
    refused("no key")
    told(5, exact=False)
    now[0] += SELDOM_S
    told(5, ("no run", 3), ("no key", 2))
    monkeypatch.setattr("onefold.dashboard.dead.SELDOM_MAX", 5)
    now[0] += SELDOM_S
    refused("no run")
    told(6, exact=False)
    monkeypatch.setattr(positions, "readable", lambda *_: None)  # Kafka is away: what was known stays
    assert counts.look()["runner"].count == 6


def test_how_fast_a_sum_grows() -> None:
    history = History()
    history.add(999.0, {})
    assert history.a_second("shop") is None
    for second in range(31):
        history.add(1000.0 + second, {"shop": 10 * second})
        assert history.a_second("shop") == (10.0 if second >= 5 else None)
    assert history.a_second("zoo") is None
    history.add(1040.0, {"shop": 0})  # it was started over
    assert history.a_second("shop") == 0.0
    history.add(1041.0, {})
    assert history.a_second("shop") is None


@pytest.mark.parametrize("width", [1280, 320])
def test_the_way_fits(page: LivePage, floor: Floor, width: int) -> None:
    """From left to right, or from top to bottom: no box lies over another, none is cut off, each arrow has its number. Of many
    boxes the last one says how many are left out.
    """
    wrong(floor.connection)
    page.emulate(width=width)
    page.open("/pipelines/runner")
    page.soon(".way", "about 1 row")
    page.ask(
        "document.querySelectorAll('.box span:first-child').forEach(name => { name.textContent += 'x'.repeat(60) })"
    )
    places = page.ask(
        "[...document.querySelectorAll('.box, .leg')].map(one => one.getBoundingClientRect()).map(one =>"
        " [one.left, one.right, one.top, one.bottom])"
    )
    for number, (left, right, top, bottom) in enumerate(places):
        assert 0 <= left < right <= width
        for other_left, other_right, other_top, other_bottom in places[:number]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart, (width, places[number], (other_left, other_right, other_top, other_bottom))
    starts = page.ask(
        "[...document.querySelectorAll('.stage')].map(one => one.getBoundingClientRect()).map(one => [one.left, one.top])"
    )
    across, down = ([one[axis] for one in starts] for axis in (0, 1))
    assert (across if width == 1280 else down) == sorted(set(across if width == 1280 else down))
    assert page.ask("document.querySelectorAll('.leg').length") == 4
    assert "" not in page.ask("[...document.querySelectorAll('.leg .at')].map(one => one.innerText)")


def test_many_boxes_are_counted() -> None:
    assert Stage([Box("table", "t")] * BOXES_MAX).most == BOXES_MAX
    assert Stage([Box("table", "t")] * (BOXES_MAX + 1)).most == BOXES_MAX - 1


@pytest.mark.promise("the-last-day")
def test_the_last_day_is_in_the_database(page: LivePage, floor: Floor) -> None:
    """As charts, and as a table of hours, from the first moment on: no dashboard has to have been there."""
    wrong(floor.connection)
    noted = [(60 * minute, 7.0 if minute == 50 else 0.5, 600, 600) for minute in range(15, 100)]
    note(floor.connection, *noted, (90_000, 99.0, 90_000, 90_000))
    page.open("/pipelines/runner")
    page.soon("#day", "records, ten minutes a point; 10 at most")
    assert "the worst batch of ten minutes; 7.0" in page.text("#day")
    page.ask("document.querySelector('#day-numbers summary').click()")
    assert page.ask("document.querySelectorAll('#day-numbers tbody tr').length") in (2, 3)
    eventually(lambda: page.ask("document.querySelectorAll('#day .plot canvas').length") == 2, SOON_S, "both are drawn")
    assert page.barriers() == []


@pytest.mark.promise("the-last-day")
def test_what_was_not_written_is_nothing_and_what_is_not_known_is_left_out(floor: Floor, database: str) -> None:
    """Ten minutes without a batch have a rate of 0. Offsets stand for records that were not counted."""
    note(floor.connection, (7200, 2.5, 6000, 3000), (3600, None, 1200, None))
    slots = day_of(database)
    assert [slot.until - slots[0].until for slot in slots] == [SLOT_S * number for number in range(len(slots))]
    assert len(slots) in (12, 13), "up to the present ten minutes"
    assert [(slot.rate, slot.oldest_s) for slot in slots if slot.rate] == [
        (5.0, pytest.approx(2.5, abs=0.01)),
        (2.0, None),
    ]
    assert day_of(database, "bank") == []
    floor.connection.execute("REVOKE SELECT ON onefold.batch FROM onefold_reader")
    assert day_of(database) == []


def day_of(dsn: str, sink: str = "runner") -> Sequence[Slot]:
    async def fetch() -> Sequence[Slot]:
        reader = Reader(dsn)
        try:
            async with reader.snapshot() as connection:
                return (await batches.day(connection, sink, Reading(), datetime.now(UTC), math.inf))[0]
        finally:
            await reader.close()

    return asyncio.run(fetch())


def test_who_has_which_task(
    page: LivePage, floor: Floor, fresh_domain: Callable[..., Topology], client: dict[str, str], tmp_path: Path
) -> None:
    topology = fresh_domain("runner", 2)
    wrong(floor.connection)
    page.open("/pipelines/runner")
    page.soon("#tasks", "no processor")
    with instance(topology, client, tmp_path / "one", name="-one"):
        page.soon("#tasks", f"{tmp_path.name}-one")
        eventually(lambda: "no processor" not in page.text("#tasks"), 30, "each task has somebody")
        assert page.ask("document.querySelectorAll('#tasks tbody tr').length") == 2
        assert page.barriers() == []
