"""Entries of Kafka's log of transactions, byte by byte."""

import struct
from collections.abc import Collection

import pytest

from onefold.config.settings import Settings
from onefold.operate import hanging_transactions
from onefold.operate.hanging_transactions import Entered, HangingTransaction, Held, transaction

pytestmark = pytest.mark.promise("hidden-by-kafka")

KEY = b"\x00\x00\x00\x0ahangs-here"
# As a broker of version 4 has written it: open, over t/1.
OPEN = (
    b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xea`\x01\x02\x02t\x02\x00\x00\x00\x01\x00"
    b"\x00\x00\x01\xa2\tm\x96\xdf\x00\x00\x01\xa2\tm\x96\xdd\x01\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00"
)
SINCE_MS = 0x1A2096D96DD
STATUS_AT = 16


def older(status: int, *topics: tuple[bytes, tuple[int, ...]]) -> bytes:
    """The first version's form."""
    partitions = b"".join(
        struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers)
        for name, numbers in topics
    )
    head = struct.pack(">hqhibi", 0, 7, 1, 60_000, status, len(topics))
    return head + partitions + struct.pack(">qq", 12, 11)


def test_an_open_transaction_says_since_when_and_where() -> None:
    assert transaction(KEY, OPEN) == ("hangs-here", HangingTransaction("hangs-here", SINCE_MS, frozenset({("t", 1)})))
    found = transaction(KEY, older(1, (b"one", (0, 3)), (b"two", (2,))))
    places = frozenset({("one", 0), ("one", 3), ("two", 2)})
    assert found == ("hangs-here", HangingTransaction("hangs-here", 11, places))


@pytest.mark.parametrize("status", range(8))
def test_it_is_open_until_it_is_marked_everywhere(status: int) -> None:
    """Empty, ongoing, prepared in two ways, completed in two ways, dead, fenced."""
    for value in (older(status, (b"t", (1,))), OPEN[:STATUS_AT] + bytes([status]) + OPEN[STATUS_AT + 1 :]):
        entry = transaction(KEY, value)
        assert entry is not None
        assert (entry[1] is not None) == (status in (1, 2, 3))


@pytest.mark.parametrize(("status", "committed"), [(2, True), (3, False)])
def test_what_is_decided_says_when_and_how(status: int, committed: bool) -> None:
    places = frozenset({("t", 1)})
    found = transaction(KEY, older(status, (b"t", (1,))))
    assert found == ("hangs-here", HangingTransaction("hangs-here", 11, places, 12, committed))
    found = transaction(KEY, OPEN[:STATUS_AT] + bytes([status]) + OPEN[STATUS_AT + 1 :])
    assert found == ("hangs-here", HangingTransaction("hangs-here", SINCE_MS, places, SINCE_MS + 2, committed))


PLACE = ("t", 1)
HERE = frozenset({PLACE})
MINUTE_MS = 60_000


def decided(name: str, since_ms: int, decided_ms: int, *, committed: bool = True) -> HangingTransaction:
    return HangingTransaction(name, since_ms, HERE, decided_ms, committed)


def test_of_a_marker_that_is_missing_the_decisions_of_that_time_tell_whose_it_was() -> None:
    """Those of another place, or another time, do not."""
    sent_ms = 10 * MINUTE_MS
    its = decided("a", sent_ms - 50, sent_ms + 50)
    others = [
        decided("b", sent_ms + 2 * MINUTE_MS, sent_ms + 3 * MINUTE_MS),
        decided("c", sent_ms - 3 * MINUTE_MS, sent_ms - 2 * MINUTE_MS),
    ]
    assert Entered([], [its, *others]).owner(PLACE, sent_ms) == (its, True)
    assert Entered([], others).owner(PLACE, sent_ms) == (None, False)
    assert Entered([], [its]).owner(("t", 0), sent_ms) == (None, False)
    assert Entered([], [its._replace(committed=False)]).owner(PLACE, sent_ms) == (its._replace(committed=False), False)


@pytest.mark.parametrize("committed", [False, True])
def test_where_two_had_one_under_way_nobody_is_named(committed: bool) -> None:
    """And if one of them was committed, what is hidden may be that one's."""
    both = [decided("a", 0, 100, committed=committed), decided("b", 0, 100, committed=False)]
    assert Entered([], both).owner(PLACE, 50) == (None, committed)


def test_one_that_had_begun_by_then_and_is_open_holds_it() -> None:
    is_open = HangingTransaction("a", 40, HERE)
    assert Entered([is_open], [decided("b", 0, 100)]).owner(PLACE, 50) == (is_open, False)
    decided_now = decided("a", 40, 60)
    assert Entered([decided_now], [decided_now]).owner(PLACE, 50) == (decided_now, True)


def test_one_that_began_later_hides_perhaps_what_was_committed_before_it() -> None:
    """Its program goes on, and does not know that a marker is missing. Or its sender chose an older time: nobody can tell."""
    later = HangingTransaction("a", 5 * MINUTE_MS, HERE)
    assert Entered([later], [decided("a", 0, 100)]).owner(PLACE, 50) == (later, True)
    assert Entered([later], []).owner(PLACE, 50) == (later, False)


def test_what_may_have_been_committed_is_not_to_be_aborted() -> None:
    """Whoever copies the command that is shown must not remove what everybody was told is there."""
    hangs = Held("t", 1, 5, 12, "loader", 93.4, committed=True)
    assert "the transaction of loader blocks 12 offsets for 93 s, and may have been committed" in str(hangs)
    assert "abort" not in hangs.remedy
    assert "abort --topic t --partition 1 --start-offset 5" in hangs._replace(committed=False).remedy


def test_topics_that_only_workers_write_are_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each queue what was put back, and what is no job. Workers write them by transactions."""

    def all_held(kafka: object, client: object, topics: Collection[str]) -> list[Held]:
        return [Held(topic, 0, 5, 12, None, 93.4) for topic in sorted(topics)]

    monkeypatch.setattr(hanging_transactions, "_held", all_held)
    found = hanging_transactions.by_pipeline(Settings(bootstrap_servers="127.0.0.1:9"))
    assert found is not None
    named = {one.topic for one in found["sheets"]}
    assert {f"sheets.{queue}.{end}" for queue in ("jobs", "objects") for end in ("again", "dead")} <= named
    assert {"sheets.edits", "sheets.finished", "sheets.jobs", "sheets.changelog"} <= named
    assert not any(one.topic.endswith(".again") for one in found["runner"])
