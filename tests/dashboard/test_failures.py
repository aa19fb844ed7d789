"""What was refused, by its reason and over time."""

from datetime import UTC, datetime, timedelta

from onefold.dashboard.failures import REASONS_MAX, Failure, by_reason
from tests.support.floor import Floor
from tests.support.site import LivePage, Site

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOSTILE = '<img src=x onerror="document.title=1">'
_REJECT = """
INSERT INTO onefold.rejected (sink, topic, partition, "offset", reason, rejected_at)
VALUES (%s, 'runner.stats', 0, %s, %s, now() - make_interval(hours => %s))
"""


def test_the_most_frequent_reason_comes_first() -> None:
    """With how often it was given lately, and where the newest is."""

    def ago(minutes: int) -> datetime:
        return NOW - timedelta(minutes=minutes)

    found = [("no key", ago(5), "t", "0/9"), ("no run", ago(3000), "t", "0/1"), ("no run", ago(90), "u", "1/2")]
    assert by_reason(found, NOW) == [
        Failure("no run", 2, 0, 1, ago(3000), ago(90), "u", "1/2"),
        Failure("no key", 1, 1, 1, ago(5), ago(5), "t", "0/9"),
    ]
    assert by_reason([], NOW) == []
    assert len(by_reason([(f"reason {number}", NOW, "t", "0/0") for number in range(9)], NOW)) == REASONS_MAX


def test_rows_that_postgresql_refused_are_on_the_page(page: LivePage, floor: Floor) -> None:
    for offset, hours in enumerate((0, 2, 40)):
        floor.connection.execute(_REJECT, ("runner", offset, HOSTILE, hours))
    floor.connection.execute(_REJECT, ("runner", 7, "too long", 3))
    floor.connection.execute(_REJECT, ("bank", 8, "of another pipeline", 0))
    page.open("/pipelines/runner")
    page.soon(".refused", "4 output records that PostgreSQL refused")
    rows = page.ask(
        "[...document.querySelectorAll('.refused tbody tr')].map(row => row.innerText.split('\\t').slice(0, 4))"
    )
    assert rows == [[HOSTILE, "1", "2", "3"], ["too long", "0", "1", "1"]]
    assert page.ask("document.querySelector('.refused tbody a').innerText") == "runner.stats/0/0", "the newest"
    assert page.barriers() == []


def test_what_may_not_be_read_of_them_is_left_out(site: Site, floor: Floor) -> None:
    floor.connection.execute(_REJECT, ("runner", 7, "too long", 3))
    assert "too long" in site.get("/pipelines/runner")[1]
    floor.connection.execute("ALTER TABLE onefold.rejected RENAME TO away")
    status, text = site.get("/pipelines/runner")
    assert (status, "too long" in text) == (200, False)
