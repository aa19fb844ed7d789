"""The headline, case by case: facts in, sentences out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onefold.dashboard.engine import Verdict
from onefold.dashboard.failures import Failure
from onefold.dashboard.jobs import Jobs
from onefold.dashboard.standing import Dead, Facts, Headline, Rank, Service, Waiting, headline, of
from onefold.operate.held import Held

pytestmark = pytest.mark.promise("the-worst-headline")

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STALL_S = 60.0
SP = "\N{NARROW NO-BREAK SPACE}"


def verdict(outcome: str = "valid", since: int = 0, ago: timedelta = timedelta(minutes=1)) -> Verdict:
    """A word of the judge."""
    return Verdict(outcome, "3 differences", 10, NOW - ago, since)


WELL = Facts(
    "shop", NOW, landed=True, verdict=verdict(), to_fold=Waiting(0, 0.0), to_land=Waiting(0, 0.0), dead=Dead(0)
)
LOADER = Held("shop.sales", 1, 5, 12, "loader", 93.4)
JOBS = Jobs("shop.mails", 3, 0, 3, 5, 9, 1, 0, "", None)
FOLDER = Service("processor-shop-1", "running")
KILLED = Service("processor-shop-1", "running", 2, "was killed by signal 9", NOW - timedelta(seconds=90))
NO_JSON = Failure("not JSON", 2, 2, 2, NOW, NOW, "shop.sales.dead", "0/7")

#: What is true, the headline, a part of the sentence below it, and where to look; the worst first.
CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"broken": ["shop.stock: left -2"]}, "shop breaks an invariant", "shop.stock: left -2.", "onefold verify shop"),
    ({"verdict": verdict("invalid")}, "shop is wrong", "Verified at 11:59:00: 3 differences.", "onefold verify shop"),
    ({"verdict": verdict("invalid", ago=timedelta(days=2))}, "shop is wrong",
     "Verified at 2026-11-19 12:00:00: 3 differences.", "onefold verify shop"),
    ({"sums": ("differs from its producer", "Nothing is on the way.")}, "shop differs from its producer", "Nothing is on",
     "onefold verify shop"),
    ({"held": [LOADER]}, "shop is blocked by an open transaction", "the transaction of loader is open for 93 s", LOADER.remedy),
    ({"held": [LOADER._replace(committed=True)]}, "shop is blocked by an open transaction", "may have been committed",
     "onefold kafka transactions describe-producers --topic shop.sales --partition 1"),
    ({"partitions": "topic shop.orders has 3 partitions, and shop.changelog 2"}, "shop has partitions that no task reads",
     "Topic shop.orders has 3 partitions, and shop.changelog 2. See", "onefold status"),
    ({"paused": "paused since 2026-11-21 11:00:00 UTC by ann@here", "to_fold": Waiting(3, 100.0, 61.0)}, "shop is paused",
     "Paused since 2026-11-21 11:00:00 UTC by ann@here. What comes meanwhile", "onefold resume shop"),
    ({"to_fold": Waiting(3, 100.0, 61.0), "services": [FOLDER]}, "shop is stalled",
     f"3 records wait to be processed, the oldest for 100{SP}s, and no progress for 61{SP}s.",
     "onefold logs processor-shop-1"),
    ({"to_land": Waiting(1, 70.0, 25.0)}, "shop is stalled", "1 record waits to be written", "onefold status"),
    ({"rejected": 1}, "shop has rows that PostgreSQL refused", "1 output record is in onefold.rejected",
     "onefold verify shop"),
    ({"silent": "Kafka does not answer."}, "Kafka does not answer", "What waits is unknown.", "onefold status"),
    ({"unknown": "user ann has no right to read shop.orders in Kafka"}, "shop has an unknown lag",
     "User ann has no right to read shop.orders in Kafka.", "onefold status"),
    ({"verdict": verdict("unknown")}, "shop could not be verified", "3 differences.", "onefold verify shop"),
    ({"queues": [JOBS, replace(JOBS, refused=2, refusal="no address")]}, "shop has 2 jobs that cannot be done",
     "No address. They wait in shop.mails,", "onefold status"),
    ({"dead": Dead(1200, False)}, "shop has up to 1,200 dead letters", "refused these", "onefold dead-letters list shop"),
    ({"dead": Dead(2, True, [NO_JSON])}, "shop has 2 dead letters", "Not JSON (2\N{MULTIPLICATION SIGN}).",
     "onefold dead-letters list shop"),
    ({"services": [KILLED]}, "shop had to be restarted", f"killed by signal 9, 90{SP}s ago; it was restarted 2 times.",
     "onefold logs processor-shop-1"),
    ({"verdict": verdict("valid", 7, timedelta(days=3))}, f"shop was last verified 3{SP}d ago",
     "7 offsets were written since", "onefold verify shop"),
    ({"verdict": replace(verdict("valid", 7), outputs=0)}, "shop has rows that no verdict covers",
     "Verified at 11:59:00, before its first output record; 7 offsets were written since.", "onefold verify shop"),
    ({"verdict": None}, "shop was never verified", "No run of `onefold verify` has recomputed", "onefold verify shop"),
    ({"unchecked": ["shop.stock: It takes long."]}, "shop has an invariant that is not checked here", "shop.stock: It takes",
     "onefold verify shop"),
    ({"uncompared": ["Sales: It has too many rows."]}, "shop has sums that are not compared here", "Sales: It has too many",
     "onefold verify shop"),
    ({"to_land": Waiting(8, 16.0, 3.0)}, "shop is behind", "8 records wait to be written", ""),
    ({"verdict": replace(verdict(), outputs=4, left_out=(2, 3))}, "shop is healthy",
     "Verified at 11:59:00. Topics, tables and columns that no model judges: 2. Output records that were not compared: 3.", ""),
    ({"verdict": replace(verdict(), outputs=0)}, "shop is healthy", "Verified at 11:59:00.", ""),
    ({}, "shop is healthy", "Verified at 11:59:00.", ""),
]  # fmt: skip


def said(*facts: Facts) -> Headline:
    """The headline over these pipelines."""
    return headline({one.name: of(one, STALL_S) for one in facts})


@pytest.mark.parametrize(("facts", "text", "detail", "command"), CASES)
def test_each_thing_is_named_with_what_to_do(facts: dict[str, Any], text: str, detail: str, command: str) -> None:
    found = said(replace(WELL, **facts)).standing

    assert (found.text, found.command) == (text, command)
    assert detail in found.detail


@pytest.mark.parametrize("place", range(len(CASES) - 1))
def test_the_worse_of_two_comes_first_whichever_pipeline_it_is_of(place: int) -> None:
    worse, better = CASES[place][0], CASES[place + 1][0]
    first, second = replace(WELL, name="zoo", **worse), replace(WELL, name="bar", **better)
    ranks = [of(one, STALL_S)[0].rank for one in (first, second)]
    if ranks[0] == ranks[1]:
        assert said(first, second).standing.name in ("bar", "")  # by name
    else:
        assert said(first, second).standing == of(first, STALL_S)[0]
    merged = replace(WELL, **{**better, **worse})
    assert of(merged, STALL_S)[0].rank == ranks[0]


def test_every_rank_has_its_case() -> None:
    assert {of(replace(WELL, **facts), STALL_S)[0].rank for facts, *_ in CASES} == {*Rank} - {Rank.EMPTY}


def test_the_others_are_counted_and_all_well_is_said_of_all() -> None:
    dead, never = replace(WELL, name="a", dead=Dead(1)), replace(WELL, name="b", verdict=None)
    assert said(dead, never, replace(WELL, name="c")).others == 1
    all_well = said(WELL, replace(WELL, name="b"))
    assert (all_well.standing.text, all_well.standing.tone, all_well.others) == ("All pipelines are healthy", "good", 0)
    assert said().standing.text == said(Facts("shop", NOW)).standing.text == "No rows yet"


@pytest.mark.parametrize(
    ("waiting", "still"),
    [
        (Waiting(5, 3.0, 61.0), True),
        (Waiting(5, 3.0, 59.0), False),
        (
            Waiting(5, 3600.0, 21.0),
            True,
        ),  # who opens the page need not wait for a minute to be told what is an hour old
        (Waiting(5, 3600.0, 19.0), False),  # a backlog moves, and a large batch may take so long
        (Waiting(5, None, 30.0), False),
        (Waiting(0, 0.0, 3600.0), False),
        (Waiting(None, None, 3600.0), False),
    ],
)
def test_what_stands_still(waiting: Waiting, *, still: bool) -> None:
    assert waiting.stands(STALL_S) is still


def test_a_restart_of_long_ago_is_no_headline_but_one_that_goes_on_is() -> None:
    """Where an older supervisor runs, nobody knows when it was."""
    before = KILLED._replace(ended_at=NOW - timedelta(minutes=11))
    for service, text in ((before, "shop is healthy"), (FOLDER._replace(restarts=3), "shop is healthy")):
        assert said(replace(WELL, services=[service])).standing.text == text
    again = before._replace(state="restarting")
    assert said(replace(WELL, services=[again])).standing.text == "shop had to be restarted"


def test_a_service_that_all_share_is_named_itself_and_is_nothing_to_say_of_each() -> None:
    sink = KILLED._replace(name="sink-1", shared=True)
    assert said(replace(WELL, services=[sink])).standing.text == "shop is healthy"
    together = headline({"shop": of(WELL, STALL_S), "": of(Facts("", NOW, services=[sink]), STALL_S)})
    assert (together.standing.text, together.others) == ("sink-1 had to be restarted", 0)


def test_a_verdict_is_not_old_while_nothing_has_landed_since() -> None:
    assert said(replace(WELL, verdict=verdict("valid", 0, timedelta(days=30)))).standing.rank == Rank.WELL
    assert said(replace(WELL, verdict=verdict("valid", 9, timedelta(hours=24)))).standing.rank == Rank.WELL
