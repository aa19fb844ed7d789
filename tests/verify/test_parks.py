"""The verifier names what goes wrong with parked keys: planted bugs of a processor and of the command."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onefold.processor.core import parking
from onefold.processor.core.parking import Parked, Taken
from onefold.processor.testing.log import Entry
from onefold.testing import TopologyDriver
from onefold.verify.audit import auditor
from onefold.verify.audit.auditor import Auditor
from onefold.verify.expect import DeadLetter
from onefold.verify.owner import Owner
from onefold.verify.parks import Ticket
from onefold.verify.record import Source
from onefold.verify.replays import Replays, Turn
from onefold.verify.verdict import INVALID
from tests.operate.test_auditing import Audit
from tests.support.clock import Clock
from tests.support.desk import DEAD, EVENTS, LAST, TAKEN, Program, workload
from tests.support.followed import Followed
from tests.support.parks import Letter, Operator, kinds, verdict, write_contracts

pytestmark = pytest.mark.promise("parked-keys")


@pytest.fixture
def contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_contracts(tmp_path, monkeypatch)


def parked(contracts: Path, program: Program) -> TopologyDriver:
    """A key with one event that was rejected and three that wait."""
    driver = TopologyDriver(program.topology(), contracts=contracts)
    for number, wants in ((1, 0), (2, 9), (3, 0), (5, 0), (7, 0)):
        driver.send(EVENTS, {"desk": "a", "number": number, "wants": wants})
    driver.run()
    return driver


def entries(driver: TopologyDriver, topic: str) -> list[Entry]:
    return driver.log._topics[topic].partitions[0]


def letters(driver: TopologyDriver) -> list[int]:
    """Where the dead letters are among the entries."""
    return [at for at, entry in enumerate(entries(driver, DEAD)) if not entry.marker]


def lose(driver: TopologyDriver) -> None:
    at = letters(driver)[2]
    entries(driver, DEAD)[at] = entries(driver, DEAD)[at]._replace(marker=True)


def double(driver: TopologyDriver) -> None:
    entries(driver, DEAD).append(entries(driver, DEAD)[letters(driver)[2]])


def swap(driver: TopologyDriver) -> None:
    """Of two letters that wait, each has the other's turn."""
    one, other = letters(driver)[1:3]
    found = entries(driver, DEAD)
    turns = [next(header for header in found[at].headers if header[0] == "onefold-parked") for at in (one, other)]
    for at, turn in ((one, turns[1]), (other, turns[0])):
        without = (header for header in found[at].headers if header[0] != "onefold-parked")
        found[at] = found[at]._replace(headers=(*without, turn))


def forget_turn(driver: TopologyDriver) -> None:
    at = letters(driver)[2]
    found = entries(driver, DEAD)
    found[at] = found[at]._replace(headers=tuple(one for one in found[at].headers if one[0] != "onefold-parked"))


PLANTED: dict[str, tuple[Callable[[TopologyDriver], None], set[str]]] = {
    "lost": (lose, {"missing dead letter"}),
    "written twice": (double, {"doubled dead letter"}),
    "two in the other order": (swap, {"changed dead letter"}),
    "without its turn": (forget_turn, {"changed dead letter"}),
}


@pytest.mark.parametrize("park", ["processor", "model"])
def test_an_audit_names_a_key_that_only_one_side_parks_once(
    park: str, contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug parks it, or a handler that takes what the model rejects: each further event of the key is only counted."""
    program = Program()
    program.version = 99 if park == "model" else 0
    followed = Followed(program.topology(), workload(), contracts)
    monkeypatch.setattr(auditor, "workload", lambda domain: followed.workload)
    followed.begin()
    audited = Auditor("desk", client={}, dsn="", kafka=followed.kafka())
    audited._following = followed.following
    standing, told = audited.standing, Audit(Clock())

    def send(number: int, wants: int = 0) -> int:
        """Returns how many findings are new."""
        followed.driver.send(EVENTS, {"desk": "a", "number": number, "wants": wants})
        followed.driver.run()
        found = followed.found()
        followed.following.findings += found
        standing.found = []
        audited._name([])
        return len(standing.found)

    assert send(1) == 0
    assert send(3, wants=LAST + 1 if park == "model" else LAST) > 0
    send(8)  # a further kind may come with it
    first, counted = len(standing.findings), standing.more
    letter = "extra dead letter" if park == "processor" else "missing dead letter"
    assert [one.key for one in standing.findings if one.kind == letter] == [{"key": "a"}]
    counts = {name for one in standing.findings if one.kind == "wrong count" for name in one.columns}
    assert counts == {"accepted", "dead"}
    assert [send(number) for number in range(9, 14)] == [0] * 5
    assert len(standing.findings) == first
    assert standing.more >= counted + 5
    told.turn(outcome=INVALID, reason="they differ", findings=standing.findings, more=standing.more)
    assert f"they differ, and {standing.more:,} more records" in told.kept[-1].reason


@pytest.mark.parametrize(("plant", "found"), PLANTED.values(), ids=PLANTED.keys())
def test_a_waiting_event_that_is(plant: Callable[[TopologyDriver], None], found: set[str], contracts: Path) -> None:
    driver = parked(contracts, Program())
    assert verdict(driver, {})[0] == []
    plant(driver)
    assert kinds(verdict(driver, {})[0]) == found


def test_an_event_that_does_not_wait(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler gets it, and its output and its row are wrong."""
    take = parking.Parking.take

    def pass_on(self: Any, record: Any, reason: Any, state_of: Any) -> Taken:
        taken = take(self, record, reason, state_of)
        state = taken.before
        if isinstance(state, Parked) and record.offset == 3:
            after, outputs = self._handle(state.state, reason.event)
            return Taken(None, taken.key, state, state._replace(state=after), outputs)
        return taken

    monkeypatch.setattr(parking.Parking, "take", pass_on)
    driver = parked(contracts, Program())
    assert kinds(verdict(driver, {})[0]) >= {"missing dead letter", "phantom output", "different row"}


def test_replays_that_are_taken_out_of_order(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = parking.Parking.take

    def take_any(self: Any, record: Any, reason: Any, state_of: Any) -> Taken:
        ticket, _ = self._ticket(record)

        def called(key: str) -> Any:
            state = state_of(key)
            return state._replace(next=ticket.number) if ticket and isinstance(state, Parked) else state

        return take(self, record, reason, called)

    driver = parked(contracts, Program())
    operator = Operator(driver)
    operator.drop(operator.letters()[0])
    driver.run()
    monkeypatch.setattr(parking.Parking, "take", take_any)
    operator.replay(reversed(operator.letters()))
    driver.run()

    found = kinds(verdict(driver, operator.receipts)[0])
    assert found >= {"missing dead letter", "wrong output", "different row"}


def test_a_drop_is_in_the_input_once(contracts: Path) -> None:
    driver = parked(contracts, Program())
    operator = Operator(driver)
    head = operator.letters()[0]
    operator.drop(head)
    assert kinds(verdict(driver, operator.receipts)[0]) == set()
    at = len(entries(driver, EVENTS)) - 1
    entries(driver, EVENTS).append(entries(driver, EVENTS)[at])
    assert "doubled replay" in kinds(verdict(driver, operator.receipts)[0])
    del entries(driver, EVENTS)[at:]
    assert kinds(verdict(driver, operator.receipts)[0]) == {"missing replay"}


def test_a_drop_without_a_receipt(contracts: Path) -> None:
    driver = parked(contracts, Program())
    operator = Operator(driver)
    operator.drop(operator.letters()[0])
    assert "doubled replay" in kinds(verdict(driver, {})[0])


def exchanged(one: Letter, other: Letter) -> tuple[Letter, Letter]:
    """Two dead letters, each with the turn of the other."""
    turn = "onefold-parked"
    return (
        one._replace(headers={**one.headers, turn: other.headers[turn]}),
        other._replace(headers={**other.headers, turn: one.headers[turn]}),
    )


def test_two_events_that_are_replayed_in_the_turn_of_each_other(contracts: Path) -> None:
    """The processor takes each as it says: 5 before 3. The receipts have the turns of the dead letters."""
    driver = parked(contracts, Program())
    operator = Operator(driver)
    first, second, third, last = operator.letters()
    operator.drop(first)
    late, early = exchanged(second, third)
    for sent, letter in ((early, third), (late, second), (last, last)):
        operator.replay([sent], receipt=letter)
    driver.run()
    assert [row["numbers"] for row in driver.table(TAKEN).values()] == ["1 5 3 7"]
    wrong = verdict(driver, operator.receipts)[0]
    assert {one.kind for one in wrong} == {"changed replay"}
    assert {(one.source, one.columns["onefold-parked"]) for one in wrong} == {
        (str(third.source), ("2 waits desk.events/0/1 a", "1 waits desk.events/0/1 a")),
        (str(second.source), ("1 waits desk.events/0/1 a", "2 waits desk.events/0/1 a")),
    }


def test_a_replay_without_its_turn(contracts: Path) -> None:
    """It waits as every event of the key, which is parked for ever."""
    driver = parked(contracts, Program())
    operator = Operator(driver)
    first = operator.letters()[0]
    operator.replay([first._replace(ticket=None)], receipt=first)
    driver.run()
    assert kinds(verdict(driver, operator.receipts)[0]) == {"changed replay"}


def test_a_drop_in_the_turn_of_another_event(contracts: Path) -> None:
    driver = parked(contracts, Program())
    operator = Operator(driver)
    first, second, *_ = operator.letters()
    operator.drop(exchanged(second, first)[0], receipt=second)
    driver.run()
    assert driver.states()["a"].next == 1
    assert kinds(verdict(driver, operator.receipts)[0]) == {"changed replay"}


def test_a_model_that_says_pass_finds_every_waiting_event(contracts: Path) -> None:
    driver = parked(contracts, Program())
    assert {"extra dead letter", "changed dead letter"} <= kinds(verdict(driver, {}, workload("pass"))[0])


def test_a_receipt_that_tells_another_turn_than_a_checkpoint_does_not_go_on_from_it() -> None:
    source, turn = Source("t", 0, 1), Ticket(1, False, "t/0/0", "a")
    letter = DeadLetter("", b"a", b"", "", 0, str(turn))
    for receipt, stands in (
        (Turn(True, turn), True),
        (Turn(False, turn), True),
        (Turn(True, turn._replace(number=2)), False),
        (True, False),
    ):
        assert Replays({}, Owner("", "p")).go_on({source: receipt}, {source: letter}, {("t", 0): 9}) is stands
    plain = letter._replace(parked=None)
    assert Replays({}, Owner("", "p")).go_on({source: True}, {source: plain}, {("t", 0): 9})


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ValueError, match="has on_dead_letter='hold': say pass or park"):
        replace(workload(), on_dead_letter="hold")
