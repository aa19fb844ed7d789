"""Parked keys: events of a key wait behind a rejected one, in order, until it is replayed or dropped."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.error_codes import Code
from onefold.operate import state_check
from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.core.parking import Parked
from onefold.processor.core.topology import Tick
from onefold.processor.core.values import Record
from onefold.processor.io.replays import Dropped, ReplayReceipt, WithoutWithdrawn
from onefold.processor.testing import Crash
from onefold.testing import STEPS, TopologyDriver
from onefold.verify.replays import ReceiptTurn
from tests.support.coded import raises
from tests.support.desk import DEAD, EVENTS, LAST, OTHERS, PARTITIONS, TAKEN, Desk, Program, workload
from tests.support.parks import Letter, Operator, verdict, write_contracts
from tests.support.replicas import Replicas
from tests.support.simulated_stage import kafka_of

pytestmark = pytest.mark.promise("parked-keys")


@pytest.fixture
def contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_contracts(tmp_path, monkeypatch)


class Sent(NamedTuple):
    desk: str
    number: int
    wants: int


def send(driver: TopologyDriver, *events: Sent) -> None:
    for event in events:
        driver.send(EVENTS, event._asdict())
    driver.run()


def reference(events: list[Sent], dropped: set[int]) -> dict[str, str]:
    """What the handler makes of the events of each key, in the order in which they were sent, without the dropped ones."""
    taken = defaultdict[str, list[int]](list)
    for event in events:
        if event.number >= 0 and event.wants <= LAST and event.number not in dropped:
            taken[event.desk].append(event.number)
    return {desk: " ".join(map(str, numbers)) for desk, numbers in taken.items()}


def taken(driver: TopologyDriver) -> dict[str, str]:
    """What the last rows say."""
    return {row["desk"]: row["numbers"] for row in driver.table(TAKEN).values()}


# --- what is promised, step by step


@pytest.mark.parametrize("number", [2, 3], ids=["rejected", "a bug"])
def test_later_events_of_the_key_wait_and_others_do_not(number: int, contracts: Path) -> None:
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts)
    send(driver, Sent("a", 1, 0), Sent("a", number, 1), Sent("a", 5, 0), Sent("b", 6, 0), Sent("a", 7, 0))

    assert taken(driver) == {"a": "1", "b": "6"}
    assert [headers["onefold-parked"] for _, _, headers in driver.records(DEAD)] == [
        b"0 refused desk.events/0/1 a",
        b"1 waits desk.events/0/1 a",
        b"2 waits desk.events/0/1 a",
    ]
    assert driver.records(DEAD)[1][2]["onefold-reason"] == b"waits behind desk.events/0/1"
    assert driver.states()["a"] == Parked(Desk("1"), "desk.events/0/1", 0, 2)


@pytest.mark.parametrize("wants", [1, LAST + 1])
def test_replayed_letters_are_taken_in_order(wants: int, contracts: Path) -> None:
    """A fresh event that comes before the replays waits as well. A letter that is refused again goes on holding the others."""
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 2, wants), Sent("a", 4, 0), Sent("a", 6, 0))
    program.version = 1
    driver.kill()
    waiting = operator.letters()
    send(driver, Sent("a", 8, 0))
    operator.replay(waiting)
    driver.run()
    if wants > LAST:
        assert taken(driver) == {}
        refused, *others = operator.parked()["a"]
        assert refused.ticket is not None
        assert refused.ticket.refused
        assert [letter.ticket.number for letter in others if letter.ticket] == [1, 2, 3]
        operator.drop(refused)
    operator.replay(letter for letter in operator.parked()["a"])
    driver.run()

    assert taken(driver) == ({"a": "2 4 6 8"} if wants == 1 else {"a": "4 6 8"})
    assert operator.letters() == []
    send(driver, Sent("a", 9, 0))
    assert taken(driver)["a"].endswith(" 9")
    assert verdict(driver, operator.receipts)[0] == []


def test_replays_in_any_order_are_taken_in_that_of_their_tickets(contracts: Path) -> None:
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 2, 1), Sent("a", 4, 0), Sent("a", 6, 0))
    program.version = 1
    for _ in range(3):
        operator.replay(reversed(operator.letters()))
        driver.run()

    assert taken(driver) == {"a": "2 4 6"}
    assert verdict(driver, operator.receipts)[0] == []


def test_what_cannot_be_decoded_parks_nothing(contracts: Path) -> None:
    driver = TopologyDriver(Program().topology(), contracts=contracts)
    driver.send(EVENTS, b"no event", key="a")
    send(driver, Sent("a", 1, 0))

    assert taken(driver) == {"a": "1"}
    assert "onefold-parked" not in driver.records(DEAD)[0][2]
    assert verdict(driver, {})[0] == []


def test_a_record_that_ends_the_process_parks_nothing(contracts: Path) -> None:
    """To find its key the processor would decode it again. Its replay that ends the process holds the others."""
    program = Program()
    topology = program.topology()

    def deadly(state: Any, event: Any) -> Any:
        if event.value.wants == 2:
            raise Crash("segmentation fault")
        return program.handle(state, event)

    driver = TopologyDriver(replace(topology, handle=deadly), contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 1, 2), Sent("a", 2, 0), Sent("a", 4, 1), Sent("a", 5, 2), Sent("a", 6, 0))
    assert taken(driver) == {"a": "2"}
    program.version = 1
    operator.replay(letter for letter in operator.letters() if letter.ticket)
    driver.run()

    assert taken(driver) == {"a": "2 4"}
    assert [letter.ticket and letter.ticket[:2] for letter in operator.letters()] == [None, (1, True), (2, False)]


@pytest.mark.parametrize("others", [99, 100, 2_000])
def test_a_version_that_fails_at_everything_is_refused_also_between_events_that_wait(
    others: int, contracts: Path
) -> None:
    def fail(state: Any, event: Any) -> Any:
        raise KeyError("price")

    driver = TopologyDriver(replace(Program().topology(), handle=fail), contracts=contracts)
    send(driver, Sent("hot", 0, 0))
    for number in range(others):
        driver.send(EVENTS, Sent(f"new-{number}", number, 0)._asdict())
        driver.send(EVENTS, Sent("hot", number, 0)._asdict())
    if others < 100:
        driver.run()
        assert len(driver.records(DEAD)) == 1 + 2 * others
        return
    with raises(Refused, Code.HANDLER_FAILS):
        driver.run()
    assert len(driver.records(DEAD)) == 1


@pytest.mark.parametrize("moved", ["the rejected one", "all"])
def test_a_replay_that_has_another_key_now_keeps_its_turn(moved: str, contracts: Path) -> None:
    """Nothing would call the tickets behind it."""
    program = Program()
    keys: list[Callable[[Any], str]] = [lambda value: value.desk]
    topology = replace(program.topology(), key=lambda value: keys[-1](value))
    driver = TopologyDriver(topology, contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 2, 1), Sent("a", 4, 0))
    program.version = 1
    keys.append(lambda value: f"{value.desk}/b" if value.wants or moved == "all" else value.desk)
    driver.kill()
    for _ in range(2):
        operator.replay(operator.letters())
        driver.run()

    head, waiting = operator.letters()
    assert [one.ticket and one.ticket[:2] for one in (head, waiting)] == [(0, True), (1, False)]
    assert head.headers["onefold-reason"] == b"its state key is a/b now, and it was parked as an event of a"
    keys.pop()
    driver.kill()
    operator.replay(operator.letters())
    driver.run()
    assert (taken(driver), operator.letters()) == ({"a": "2 4"}, [])


def test_a_key_that_is_no_text_parks_nothing(contracts: Path) -> None:
    program = Program()
    topology = replace(program.topology(), key=lambda value: value.desk.encode().decode("ascii", "surrogateescape"))
    driver = TopologyDriver(topology, contracts=contracts)
    driver.send(EVENTS, '{"desk": "é", "number": 2, "wants": 0}'.encode(), key="x")
    send(driver, Sent("a", 4, 0))
    assert taken(driver) == {"a": "4"}
    assert "onefold-parked" not in driver.records(DEAD)[0][2]


def test_the_state_of_a_key_that_had_none(contracts: Path) -> None:
    """It is nothing again after a drop."""
    driver = TopologyDriver(Program().topology(), contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 2, 9))
    assert driver.states() == {"a": Parked(None, "desk.events/0/0")}
    operator.drop(operator.letters()[0])
    driver.run()

    assert driver.states() == {}
    assert tuple(driver.task().progress.counts) == (0, 1, 0, 1)
    assert verdict(driver, operator.receipts)[0] == []


def test_after_a_reset_a_drop_is_no_record_and_a_replay_has_no_turn(contracts: Path) -> None:
    """What was withdrawn parks nothing; the replay is an event like every other, which parks its key if it is rejected."""
    driver = TopologyDriver(Program().topology(), contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 2, 9), Sent("a", 4, 0), Sent("b", 6, 9), Sent("b", 8, 0))
    operator.drop(operator.letters()[0])
    operator.replay(operator.letters())
    driver.run()
    for topic in (TAKEN, DEAD, "desk.changelog"):
        driver.log.create(topic, 1)
    driver.kill()
    of_before = {source: isinstance(turn, ReceiptTurn) and turn.dropped for source, turn in operator.receipts.items()}
    by = Dropped("ada@laptop", "a test event")
    receipts = {
        (*at,): ReplayReceipt((*at,), "", "", 0, by if is_dropped else None) for at, is_dropped in of_before.items()
    }
    driver.codec = WithoutWithdrawn(driver.codec, receipts)  # type: ignore[assignment]  # a codec is all that a task needs
    driver.run()

    assert taken(driver) == {"a": "4"}
    assert tuple(driver.task().progress.counts) == (1, 0, 0, 6)
    assert [letter.ticket and letter.ticket[:2] for letter in Operator(driver).letters()] == [
        *[None] * 4,
        (0, True),
        (1, False),
    ]
    assert verdict(driver, of_before)[0] == []


def test_the_states_of_several_inputs_after_a_reset_are_compared(contracts: Path) -> None:
    """The recorded merge order leaves out a drop of before, and the comparison does not wait for it."""
    topology = Program().topology(inputs=(EVENTS, OTHERS))
    driver = TopologyDriver(topology, contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 2, 9))
    operator.drop(operator.letters()[0])
    driver.send(OTHERS, Sent("a", 4, 0)._asdict())
    driver.run()
    for topic in (TAKEN, *topology.dead.values(), topology.order or "", topology.changelog):
        driver.log.create(topic, 1)
    driver.kill()
    by = Dropped("ada@laptop", "a test event")
    receipts = {(*at,): ReplayReceipt((*at,), "", "", 0, by) for at in operator.receipts}
    driver.codec = WithoutWithdrawn(driver.codec, receipts)  # type: ignore[assignment]  # a codec is all that a task needs
    driver.run()

    assert driver.states() == {"a": Desk("4")}
    states = state_check.compare(driver.topology, driver.codec, {}, lambda what, read: None, kafka_of(driver.log))
    assert (states.findings, states.unknown, states.check.found) == ([], None, 1)


@pytest.mark.parametrize(
    "due", [None, lambda state: 0 if state.numbers else None], ids=["all keys", "keys that are due"]
)
def test_ticks_do_not_wait(due: Any, contracts: Path) -> None:
    """A tick is for all keys, and sees the handler's state of a parked one."""
    program = Program()
    seen: list[tuple[str, Any]] = []

    def on_tick(key: str, state: Any, at_ms: int) -> Any:
        seen.append((key, state))
        return Desk(f"{state.numbers} t"), ()

    driver = TopologyDriver(program.topology(tick=Tick(1, on_tick, due=due)), contracts=contracts)
    send(driver, Sent("a", 1, 0), Sent("a", 2, 1), Sent("b", 4, 1))
    driver.tick(1_000)
    driver.run()

    assert seen == [("a", Desk("1"))]
    assert driver.states()["a"] == Parked(Desk("1 t"), "desk.events/0/1")


def test_emit_change_sees_the_states_of_the_handler(contracts: Path) -> None:
    program = Program()
    seen: list[tuple[Any, Any]] = []

    def emit_change(key: str, before: Any, after: Any) -> Any:
        seen.append((before, after))
        return ()

    driver = TopologyDriver(program.topology(emit_change=emit_change), contracts=contracts)
    operator = Operator(driver)
    send(driver, Sent("a", 2, 1))
    send(driver, Sent("a", 4, 0))
    program.version = 1
    operator.replay(operator.letters())
    driver.run()
    assert seen == [(None, Desk("2 4"))]


def test_a_state_that_cannot_be_written_parks_its_key(contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that has made it is at fault, and not one that waits behind it."""
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts)
    encode, limit = driver.codec.encode_state, 12

    def encode_small(state: Any) -> bytes:
        data = encode(state)
        if len(data.rpartition(b"\n")[2]) > len(encode(Desk(""))) + limit:
            raise Rejected("too large")
        return data

    monkeypatch.setattr(driver.codec, "encode_state", encode_small)
    send(driver, Sent("a", 10_000, 0), Sent("a", 20_000_000, 0), Sent("a", 2, 9), Sent("a", 4, 0))

    assert taken(driver) == {"a": "10000"}
    assert [letter.ticket and letter.ticket[:2] for letter in Operator(driver).letters()] == [
        (0, True),
        (1, False),
        (2, False),
    ]


def test_pass_does_not_start_with_parked_keys(contracts: Path) -> None:
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts)
    send(driver, Sent("a", 2, 1))
    without = TopologyDriver(program.topology("pass"), contracts=contracts, log=driver.log)
    with raises(Refused, Code.STATE_UNREADABLE) as caught:
        without.run()
    assert "desk.changelog holds parked keys, and desk has on_dead_letter='pass'" in str(caught.value)


def test_declarations_that_cannot_be() -> None:
    program = Program()
    with raises(Refused, Code.PIPELINE_WRONG):
        program.topology("hold")
    with raises(Refused, Code.PIPELINE_WRONG):
        replace(program.topology(), inputs=(EVENTS, TAKEN))
    with pytest.raises(ValueError, match="has on_dead_letter='hold'"):
        workload("hold")


def test_the_events_of_two_inputs_wait_in_one_order(contracts: Path) -> None:
    """That in which they were processed. Their replays come in any order, and it takes some rounds."""
    inputs = (EVENTS, OTHERS)
    program = Program()
    driver = TopologyDriver(program.topology(inputs=inputs), contracts=contracts)
    operator = Operator(driver)
    for number in range(2, 20, 2):
        driver.send(inputs[number % 3 == 0], {"desk": "a", "number": number, "wants": int(number == 4)})
        driver.run()
    program.version = 1
    for rounds in range(10):  # noqa: B007 - told below
        if not (waiting := operator.letters()):
            break
        operator.replay(waiting)
        driver.run()

    assert taken(driver) == {"a": "2 4 6 8 10 12 14 16 18"}
    assert rounds > 1
    assert verdict(driver, operator.receipts, workload(inputs=inputs))[0] == []


@pytest.mark.parametrize("bug", ["none", "a ticket less", "another state"])
def test_states_of_parked_keys_are_compared(bug: str, contracts: Path) -> None:
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts)
    send(driver, Sent("a", 1, 0), Sent("a", 2, 1), Sent("a", 4, 0))
    entries = driver.log._topics["desk.changelog"].partitions[0]
    at = max(number for number, entry in enumerate(entries) if entry.key == b"sa")
    value = entries[at].value or b""
    old, new = {"none": (b"", b""), "a ticket less": (b'"last": 1', b'"last": 0'), "another state": (b'"1"', b'"2"')}[
        bug
    ]
    entries[at] = entries[at]._replace(value=value.replace(old, new))
    found = state_check.compare(driver.topology, driver.codec, {}, lambda what, read: None, kafka_of(driver.log))
    assert [one.kind for one in found.findings] == ([] if bug == "none" else ["wrong state"])
    assert found.unknown is None


# --- any order of anything

KEYS = st.sampled_from("abc")
ACTIONS = st.one_of(
    st.tuples(st.just("send"), KEYS, st.integers(0, LAST + 1), st.booleans()),
    st.tuples(st.just("garbage"), KEYS),
    st.tuples(st.just("run")),
    st.tuples(st.just("crash"), st.sampled_from(STEPS), st.integers(1, 3)),
    st.tuples(st.just("upgrade")),
    st.tuples(st.just("replay"), st.integers(0, 99)),
    st.tuples(st.just("release")),
    st.tuples(st.just("drop"), st.integers(0, 99)),
)


def one_of(
    driver: TopologyDriver,
    operator: Operator,
    program: Program,
    action: Any,
    sent: list[Sent],
    dropped: set[int],
    run: Callable[[], None],
) -> None:
    """Do this. What is sent, and the numbers of what is dropped, is noted."""
    what, *more = action
    letters = [letter for letter in operator.letters() if letter.entry.value != b"garbage"]
    if what == "send":
        desk, wants, idle = more
        sent.append(Sent(desk, -len(sent) - 1 if idle else len(sent) + 1, wants))
        driver.send(EVENTS, sent[-1]._asdict())
    elif what == "garbage":
        driver.send(EVENTS, b"garbage", key=more[0])
    elif what == "run":
        run()
    elif what == "crash":
        driver.crash_at(*more)
        run()
    elif what == "upgrade":
        program.version = min(program.version + 1, LAST)
        driver.kill()
    elif what == "replay" and letters:
        operator.replay([letters[more[0] % len(letters)]])
    elif what == "release":
        operator.replay(one for several in operator.parked().values() for one in several)
    elif what == "drop" and (events := [one for one in letters if not one.is_drop]):
        letter = events[more[0] % len(events)]
        dropped.add(_value(driver, letter).number)
        operator.drop(letter)


def act(
    driver: TopologyDriver, program: Program, actions: list[Any], run: Callable[[], None]
) -> tuple[Operator, list[Sent], set[int]]:
    """Do all of this; then take the last version, and go on until no letter waits any more. What no version takes is dropped
    then. Returns what was sent, and the numbers of what was dropped.
    """
    operator, sent, dropped = Operator(driver), list[Sent](), set[int]()
    for action in actions:
        one_of(driver, operator, program, action, sent, dropped, run)
    program.version = LAST
    driver.kill()
    run()
    for _ in range(1_000):
        if not (waiting := operator.parked()):
            return operator, sent, dropped
        for head, *others in waiting.values():
            if not head.is_drop and _value(driver, head).wants > LAST:
                dropped.add(_value(driver, head).number)
                operator.drop(head)
                operator.replay(others)
            else:
                operator.replay([head, *others])
        run()
    raise AssertionError("the letters come to no end")


def _value(driver: TopologyDriver, letter: Letter) -> Any:
    return driver.codec.decode(Record(EVENTS, 0, 0, None, letter.entry.value))


def is_judged_right(driver: TopologyDriver, operator: Operator) -> None:
    """By `verify`, by the comparison of states, and in its counts."""
    findings, expected = verdict(driver, operator.receipts)
    assert findings == []
    counts = [driver.task(partition).progress.counts for partition in range(PARTITIONS)]
    assert tuple(counts[0].plus(counts[1])) == tuple(vars(expected.counts).values())
    states = state_check.compare(driver.topology, driver.codec, {}, lambda what, read: None, kafka_of(driver.log))
    assert (states.findings, states.unknown) == ([], None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTIONS, max_size=40))
def test_each_key_is_as_if_its_rejected_events_had_been_taken_or_dropped_in_their_place(
    contracts: Path, actions: list[Any]
) -> None:
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts, partitions=PARTITIONS)
    operator, sent, dropped = act(driver, program, actions, driver.run)

    assert taken(driver) == reference(sent, dropped)
    assert {key: state.numbers for key, state in driver.states().items()} == taken(driver)
    is_judged_right(driver, operator)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTIONS, max_size=40))
def test_verify_is_valid_while_keys_are_parked(contracts: Path, actions: list[Any]) -> None:
    """Also with replays that come before their turn."""
    program = Program()
    program.version = LAST
    driver = TopologyDriver(program.topology(), contracts=contracts, partitions=PARTITIONS)
    operator, sent, dropped = Operator(driver), list[Sent](), set[int]()
    for action in actions:
        one_of(driver, operator, program, action, sent, dropped, driver.run)
    driver.run()

    is_judged_right(driver, operator)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTIONS, max_size=30))
def test_replicas_park_alike(contracts: Path, actions: list[Any]) -> None:
    program = Program()
    driver = TopologyDriver(program.topology(), contracts=contracts)
    world = Replicas(driver.topology, driver=driver)

    def run() -> None:
        world.run(len(actions), 3)
        world.drain()

    operator, sent, dropped = act(driver, program, [one for one in actions if one[0] != "crash"], run)

    assert taken(driver) == reference(sent, dropped)
    assert verdict(driver, operator.receipts)[0] == []
