"""How far the tables are behind, as the page shows it."""

import re
from datetime import UTC, datetime

from onefold.dashboard import words
from onefold.dashboard.engine import DomainState
from onefold.dashboard.snapshot import LagNow
from onefold.dashboard.standing import Facts, of
from onefold.dashboard.words import NONE
from onefold.operate.held import Held
from onefold.operate.lag import UNKNOWN, Lag
from tests.support.floor import Floor
from tests.support.site import Site

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def cells(lag: Lag | None, *held: Held) -> tuple[str, str]:
    """What the row of a domain says, and what is below the table; as a screen reader reads it."""
    domains = {"shop": DomainState()}
    found = LagNow({"shop": lag} if lag else {}, NOW, NOW, "", held)
    page = words.templates().get_template("pipelines.html").render(
        lag=found, domains=domains, dead={}, standings={"shop": of(Facts("shop", NOW), 60.0)}
    )  # fmt: skip
    text = " ".join(re.sub(r"<[^>]+>", "", page).replace("\N{NARROW NO-BREAK SPACE}", " ").split())
    row, _, below = text.partition("has no rows yet ")[2].partition("never")
    return row.strip(), below.strip()


def test_each_cell_has_the_age_of_the_oldest() -> None:
    """Before them stands the freshness: the age of the oldest of all that is on its way."""
    drained, busy = Lag(0, 0.0, 0, 0.0), Lag(1234, 12.34, 5, 7200.0, exact=False)
    assert cells(drained)[0].startswith("0.0 s 0 , the oldest: 0.0 s 0 , the oldest: 0.0 s")
    assert cells(busy)[0].startswith("2 h &le;&thinsp;1,234 , the oldest: 12.3 s &le;&thinsp;5 , the oldest: 2 h")


def test_what_is_unknown_is_a_dash() -> None:
    dash = "\N{EM DASH}"
    assert cells(UNKNOWN)[0].startswith(f"{dash} {dash} {dash}")
    assert cells(None)[0].startswith(f"{dash} {dash} {dash}")
    assert cells(Lag(3, None, 0, 0.0))[0].startswith(f"{dash} 3 , the oldest: age unknown 0")


def test_what_is_held_back_is_named_as_text() -> None:
    """A transactional id is what anybody has chosen."""
    said = cells(Lag(0, 0.0, 0, 0.0), Held("shop.sales", 1, 5, 12, "<b>loader</b>", 93.4))[1]
    assert "Blocked: shop.sales/1 at offset 5: the transaction of &lt;b&gt;loader&lt;/b&gt; is open for 93 s" in said
    assert "onefold kafka transactions abort --topic shop.sales --partition 1 --start-offset 5" in said


def test_what_was_committed_is_not_to_be_ended() -> None:
    said = cells(Lag(0, 0.0, 0, 0.0), Held("shop.sales", 1, 5, 12, "loader", 93.4, committed=True))[1]
    assert "Look first: onefold kafka transactions describe-producers --topic shop.sales --partition 1" in said
    assert "transactions abort" not in said


def test_a_place_that_was_taken_is_no_landing(site: Site, floor: Floor) -> None:
    """The sink enters itself into the ledger at its start, before anything has come."""
    ledger = "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
    for sink, offset in (("mails", 0), ("shop", 1)):
        values = f"VALUES ('{sink}', '{sink}.bills', 0, {offset}, 'an-id', 'test', clock_timestamp())"
        floor.connection.execute(f"{ledger} {values}")
    home = site.get("/")[1]
    row = r'rowheader"><a href="/pipelines/(\w+)">.*?data-label="Last commit">(.*?)</td>'
    found = re.findall(row, home, re.DOTALL)
    assert dict(found)["mails"] == NONE
    assert re.fullmatch(r"\d\d:\d\d:\d\d", dict(found)["shop"])
