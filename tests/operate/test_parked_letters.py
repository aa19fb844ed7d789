"""Which dead letters of parked keys a command sends, and in which order."""

from typing import Any, ClassVar, cast

import pytest

from onefold.operate.dead_letters import parked, replay
from onefold.operate.dead_letters.letters import Letter, Original, Wanted
from onefold.operate.dead_letters.replay import Report
from onefold.operate.reading import Place
from onefold.processor.core.parking import Parked, Ticket
from onefold.processor.io.replays import Dropped, Receipt, Turn

pytestmark = pytest.mark.promise("parked-keys")


def letter(number: int, *, refused: bool = False, key: str = "a", partition: int = 0) -> Letter:
    ticket = Ticket(number, refused or not number, f"t/{partition}/0", key)
    at = number + (50 if refused else 0) + (100 if key == "b" else 0)
    place, source = Place("t.dead", partition, at), Place("t", partition, at)
    return Letter(place, source, 0, "bad", None, None, "", 0, b"us", ticket)


class Letters:
    """Those of a pipeline, some of which have a receipt."""

    def __init__(self, *found: Letter, ended: tuple[Letter, ...] = ()) -> None:
        self.found, self.ended = found, {one.source for one in ended}

    def receipts(self) -> None:
        pass

    def receipt(self, source: Place | None, receipts: None) -> bool | None:
        return True if source in self.ended else None

    def select(self, wanted: Wanted) -> list[Letter]:
        return [one for one in self.found if not (wanted.open and one.source in self.ended)]


def test_letters_of_a_key_are_sent_in_the_order_of_their_tickets() -> None:
    found: Any = Letters(letter(2), letter(0, key="b"), letter(0), letter(1), letter(0, partition=1), letter(10))
    parks = {park for one in found.found if (park := parked.park_of(one))}
    waiting = parked.open_letters(found, parks)
    sent = parked.next_round(waiting, {one.place for one in waiting})
    assert sent.letters == [letter(0), letter(1), letter(2), letter(10), letter(0, key="b"), letter(0, partition=1)]
    assert sent.heads == [letter(0), letter(0, key="b"), letter(0, partition=1)]
    assert sent.blocked == {}


def test_nothing_is_sent_past_a_rejected_one_that_is_not_chosen() -> None:
    waiting = [letter(3, refused=True), letter(4), letter(5)]
    sent = parked.next_round(waiting, {letter(4).place})
    assert (sent.letters, [*sent.blocked.values()]) == ([], waiting[:1])
    report = Report()
    replay._tell_blocked(sent, [letter(4)], report)
    assert report.failed == {letter(4).place: "it waits behind t.dead/0/53: replay or drop that one"}
    replay._tell_blocked(sent, [], report)
    assert report.failed[waiting[0].place] == "it was rejected again: bad"


def test_a_key_whose_rejected_one_is_done_goes_on() -> None:
    waiting = [letter(4), letter(5)]
    assert parked.next_round(waiting, set()).letters == waiting


@pytest.mark.parametrize("named", [(), (Place("t", 0, 0),)], ids=["by a filter", "by its place"])
def test_a_drop_takes_the_rejected_one_and_not_what_waits(named: tuple[Place, ...]) -> None:
    waiting = [letter(0), letter(1)]
    sent = parked.next_round(waiting, {one.place for one in waiting})
    assert replay._dropping(sent, Wanted(places=frozenset(named)), waiting) == {letter(0).place}


def test_what_waits_is_dropped_if_it_is_named() -> None:
    """Also behind the rejected one, and behind one that is replayed."""
    waiting = [letter(4), letter(5)]
    sent = parked.next_round(waiting, {one.place for one in waiting})
    assert replay._dropping(sent, Wanted(), waiting) == set()
    named = Wanted(places=frozenset((letter(4).place, letter(5).source or letter(5).place)))
    assert replay._dropping(sent, named, waiting) == {letter(4).place, letter(5).place}
    assert replay._dropping(sent, named, waiting[1:]) == {letter(5).place}
    rejected = [letter(0), letter(1), letter(2)]
    sent = parked.next_round(rejected, {one.place for one in rejected})
    named = Wanted(places=frozenset((letter(0).place, letter(1).place)))
    assert replay._dropping(sent, named, rejected[:2]) == {letter(0).place, letter(1).place}


A = parked.Park(b"us", "t/0/0", "a")


@pytest.mark.parametrize(
    ("found", "ended", "turn", "is_taken", "half"),
    [
        ((letter(0), letter(1)), (), 0, True, False),
        ((letter(0), letter(1), letter(0, key="b")), (letter(0),), 1, True, True),
        ((letter(0), letter(1)), (letter(0), letter(1)), 0, False, True),
        ((letter(0), letter(1)), (letter(0), letter(1)), None, True, False),
        # Nothing is left that could release the key.
        ((letter(0), letter(1)), (letter(0), letter(1)), 0, True, False),
        ((letter(0), letter(2)), (letter(0),), 1, False, True),
        ((letter(0), letter(2)), (letter(0),), 1, True, False),
    ],
    ids=[
        "none replayed",
        "some",
        "all, and not taken",
        "all",
        "all elsewhere",
        "one is gone, not taken",
        "one is gone",
    ],
)
def test_a_key_of_which_some_events_were_replayed_is_half_released(
    found: Any, ended: Any, turn: int | None, is_taken: bool, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {} if turn is None else {A: Parked(None, "t/0/0", turn, 2)}
    monkeypatch.setattr(parked, "_states", lambda letters, parks: states)
    monkeypatch.setattr(parked, "has_taken", lambda letters, partitions, wait_s: is_taken)
    letters: Any = Letters(*found, ended=ended)
    assert parked.half_released(letters) == (A if half else None)


class World(Letters):
    """What a command has sent, and a processor that writes a letter again if its turn is not there."""

    name = "desk"
    client: ClassVar[dict[str, str]] = {}

    def __init__(self, *found: Letter, runs: bool = True) -> None:
        super().__init__(*found)
        self.runs, self.turn, self.rounds, self.sent = runs, 0, 0, list[Letter]()

    def has_taken(self, letters: Any, partitions: Any) -> bool:
        for one in self.sent if self.runs else ():
            if one.ticket is not None and one.ticket.number == self.turn:
                self.turn += 1
                continue
            at = len(self.found) + 100
            again = one._replace(place=Place("t.dead", 0, at), source=Place("t", 0, at))
            self.found = (*self.found, again)
        self.sent = []
        return self.runs

    def send(self, letters: Any, decide: Any, report: Report) -> None:
        self.rounds += 1
        assert self.rounds < 9, "it does not end"
        for one in letters:
            self.sent.append(one)
            self.ended.add(one.source)
            report.done.append(one)


def release(world: World, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr(replay, "_open", lambda client, name: None)
    monkeypatch.setattr(parked, "has_taken", world.has_taken)
    report, letters = Report(), cast("Any", world)
    chosen = [*world.select(Wanted())]
    replay._release(letters, Wanted(), chosen, None, report, lambda some, decide: world.send(some, decide, report))
    return report


@pytest.mark.parametrize("gone", [0, 1])
def test_a_replay_ends_if_the_letter_whose_turn_it_is_is_gone(gone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    report = release(World(*(letter(number) for number in range(4) if number != gone)), monkeypatch)
    (why,) = report.failed.values()
    assert why == "it waits for a dead letter that is gone: its key is free only after a reset"


def test_a_command_says_that_replays_of_an_earlier_one_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(letter(0), letter(1), runs=False)
    world.ended = {one.source for one in world.found}
    report = release(world, monkeypatch)
    assert (len(report.before), report.failed) == (2, {})
    assert report.stalled.startswith("the processor of desk has not taken them yet")


def test_a_drop_before_its_turn_is_a_drop_again() -> None:
    """By its receipt, also if its record is gone from the input."""
    receipt = Receipt(("t", 0, 7), "id", "t.dead/0/1", 5, Dropped("ada", "wrong"), None)

    class Receipts:
        def receipt(self, source: Place | None, receipts: None) -> Receipt | None:
            return receipt if source == Place("t", 0, 7) else None

    letters: Any = Receipts()
    before = replay._dropped_before
    assert before(letters, Original(b"onefold-dropped/t/0/7", b"", None), None) == Dropped("ada", "wrong")
    assert before(letters, Original(b"onefold-dropped/t/0/7", b"{}", None), None) is None
    assert before(letters, Original(b"t/0/7", b"", None), None) is None
    assert before(letters, Original(None, None, None), None) is None


@pytest.mark.parametrize(("turn", "last", "waiting"), [(0, 0, 0), (0, 2, 2), (1, 2, 2), (2, 2, 1)])
def test_the_rejected_event_of_a_parked_key_is_not_one_of_those_that_wait(turn: int, last: int, waiting: int) -> None:
    assert Parked(None, "desk.events/0/2", turn, last).waiting == waiting


def test_a_receipt_tells_the_turn() -> None:
    receipt = Receipt(("t", 0, 1), "id", "t.dead/0/1", 5, None, None, Turn("c/p/life", "1 waits t/0/0 a key"))
    assert Receipt.decode(*receipt.encode()) == receipt
    key, value = receipt._replace(parked=None).encode()
    assert b"parked" not in value
    assert Receipt.decode(key, value).parked is None


@pytest.mark.parametrize("data", [None, b"", b"x", b"1 waits t/0/0", b"one waits t/0/0 a", b"\xff waits t/0/0 a"])
def test_another_text_is_no_ticket(data: bytes | None) -> None:
    assert Ticket.decode(data) is None
