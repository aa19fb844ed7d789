"""The jobs of pipelines on the live page."""

import re
from typing import Any

import psycopg
import pytest

from onefold.dashboard import jobs
from onefold.dashboard.words import age, counted
from tests.support.floor import Floor
from tests.support.site import READERS, LivePage, Site

HOSTILE = "<b onclick=alert(1)>b7</b>&amp;"
PENDING = (
    "INSERT INTO onefold.pending (queue, log_id, segment, entry, value, created, retries, active, reason)"
    " VALUES (%s, %s, 0, %s, '{}', clock_timestamp() - make_interval(secs => %s), %s, %s, %s)"
)
DONE = (
    "INSERT INTO onefold.done (queue, log_id, segment, entry, retries, created, done_at)"
    " SELECT %s, 'sheet', 0, entry, %s, now() - interval '1 h', now() - make_interval(secs => %s)"
    " FROM generate_series(%s::bigint, %s) AS entry"
)


@pytest.fixture
def connection(floor: Floor) -> psycopg.Connection[Any]:
    return floor.connection


@pytest.fixture
def busy(connection: psycopg.Connection[Any]) -> None:
    """Two queues, one of which has only done what it was given."""
    for row in (
        ("some.jobs", "a", 101, 30, 0, True, ""),
        ("some.jobs", HOSTILE, 101, 400, 3, False, "an earlier job of the log is pending"),
        ("some.jobs", "b", 202, 5, 2, False, "the store does not answer"),
        ("some.jobs", "c", 101, 1, 0, False, ""),
        # It was deferred, and somebody has claimed it since.
        ("some.jobs", "d", 101, 1, 1, True, "the store does not answer"),
    ):
        connection.execute(PENDING, row)
    connection.execute(DONE, ("some.jobs", 1, 3000, 1, 1200))
    connection.execute(DONE, ("some.jobs", 0, 30, 1201, 1234))
    connection.execute(DONE, ("other.jobs", 0, 90, 1, 7))


def rows(site: Site) -> list[list[str]]:
    """What is to be read in each row of the panel; none when it is not there."""
    found = re.search(r'<section class="jobs".*?</section>', site.get("/")[1], re.DOTALL)
    cells = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        for row in (found.group() if found else "").split("<tr")
    ]
    return [[" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in row] for row in cells if row][1:]


def test_each_queue_has_its_row(site: Site, busy: None) -> None:
    """Active and deferred are parts of pending; a name and a reason are only text."""
    other, some = rows(site)

    assert other == ["other.jobs", "0", "0", "0", "0", "7", "0", "none"]
    assert some[:7] == ["some.jobs", "5", "2", "2", "1,206", "1,234", "34"]
    assert some[7] == (
        "&lt;b onclick=alert(1)&gt;b7&lt;/b&gt;&amp;amp; entry 101, 7 min an earlier job of the log is pending"
    )


def test_a_job_that_cannot_be_done_is_the_headline(site: Site, floor: Floor) -> None:
    """Of its pipeline; one that is tried again is none."""
    floor.land(3)
    floor.connection.execute(PENDING, ("trades.mails", "a", 101, 9, 4, False, "the store does not answer"))
    assert "cannot be done" not in site.get("/")[1]
    floor.connection.execute(PENDING, ("trades.mails", "b", 101, 1, 4, False, "refused: there is no such address"))
    text = site.get("/")[1]
    (headline,) = re.findall(r'<h1 id="headline">(.*?)</h1>', text)
    assert re.sub(r"<[^>]*>", "", headline) == "trades has a job that cannot be done"
    assert "There is no such address. It waits in trades.mails" in text


def test_without_jobs_there_is_no_panel(site: Site, connection: psycopg.Connection[Any]) -> None:
    """Nor in a database that was made before there were any; the rest of the page is as always."""
    assert rows(site) == []
    connection.execute("DROP TABLE onefold.pending, onefold.done")
    status, text = site.get("/")

    assert status == 200
    assert "engine-title" in text
    assert 'class="jobs"' not in text


def test_a_role_that_may_not_read_them_sees_none(site: Site, connection: psycopg.Connection[Any], busy: None) -> None:
    """The schema gives the right to onefold_reader, by which the page reads."""
    assert rows(site) != []
    connection.execute("REVOKE SELECT ON onefold.done FROM onefold_reader")

    status, text = site.get("/")
    assert (status, 'id="trouble"' in text) == (200, False)
    assert rows(site) == []


def test_of_very_many_only_so_many_are_counted(site: Site, connection: psycopg.Connection[Any]) -> None:
    """The page asks every second."""
    connection.execute(DONE, ("some.jobs", 0, 30, 1, jobs.COUNTED_MAX + 5))
    ((_, pending, *_, done, last_minute, oldest),) = rows(site)

    assert (pending, oldest) == ("0", "none")
    assert done == last_minute == "over 100,000"


def test_how_a_count_and_an_age_are_written() -> None:
    assert [counted(value) for value in (0, jobs.COUNTED_MAX, jobs.COUNTED_MAX + 1)] == ["0", "100,000", "over 100,000"]
    assert [age(value).replace("\N{NARROW NO-BREAK SPACE}", " ") for value in (0.4, 119, 120, 7199, 7200, 172800)] == [
        "0 s", "119 s", "2 min", "120 min", "2 h", "2 d",
    ]  # fmt: skip


def test_in_a_browser_it_is_readable_for_everybody(page: LivePage, busy: None) -> None:
    """axe-core, all its rules, light and dark; no sideways scrolling on a phone; a name is only text."""
    for scheme, width in READERS:
        page.emulate(width=width, prefers_color_scheme=scheme)
        page.open()
        page.soon(".jobs h2", "Jobs")
        assert HOSTILE in page.text(".jobs")
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.barriers() == []
