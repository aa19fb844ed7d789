"""What a replica has read is passed on to its publisher: the same is published, and the log is not read again."""

import threading
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor import service
from onefold.processor.core.decision import Proposal
from onefold.processor.core.decision_log import Note
from onefold.processor.core.errors import Abortable, TooMuch
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime import passed_on
from onefold.processor.runtime.passed_on import NoWaiting, PassedOn, Read
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from tests.support.replicas import RUNNER, Member, Replicas, update

MESSAGES = "runner.messages"
NOTE = Note(0, "a", {})
LOG = "id of the log"


class Watched:
    """A publisher of member a, and of what it is not given how often it reads the log and takes bytes apart."""

    def __init__(self, world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
        self.publisher = world.publisher(world.members["a"])
        self.reads = self.decoded = 0
        log, proposals = self.publisher._log, self.publisher._proposals
        assert isinstance(log, SimulatedDecisionLog)
        self.log = log
        read, writes = log.read, proposals.writes

        def reads(timeout_s: float) -> Any:
            self.reads += 1
            return read(timeout_s)

        def decodes(data: bytes) -> Any:
            self.decoded += 1
            return writes(data)

        monkeypatch.setattr(log, "read", reads)
        monkeypatch.setattr(proposals, "writes", decodes)
        self.publisher.open()

    def turns(self) -> None:
        while self.publisher.turn():
            pass


def goes_on(member: Member) -> None:
    for _ in range(20):
        member.go_on()


def in_step(world: Replicas, watched: Watched, *numbers: int) -> None:
    """All is published, and while more comes the publisher gets into step with its replica."""
    for number in numbers:
        sends(world, number)
        goes_on(world.members["a"])
        watched.turns()
    assert watched.publisher._rests


def sends(world: Replicas, *numbers: int) -> None:
    for number in numbers:
        world.driver.send("runner.updates", update(1, number))


@pytest.fixture
def world() -> Replicas:
    world = Replicas(RUNNER)
    goes_on(world.members["a"])
    return world


def from_the_log(*numbers: int) -> list[Any]:
    """All that is published of the same inputs without anything passed on."""
    world = Replicas(RUNNER)
    a = world.members["a"]
    goes_on(a)
    for number in numbers:
        sends(world, number)
        goes_on(a)
    publisher = world.publisher(a)
    publisher._passed_on = None
    publisher.open()
    while publisher.turn():
        pass
    return [world.driver.records(topic) for topic in (MESSAGES, world.topology.changelog)]


def published(world: Replicas) -> list[Any]:
    return [world.driver.records(topic) for topic in (MESSAGES, world.topology.changelog)]


def test_what_it_has_computed_is_published_as_it_is(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(world, monkeypatch)
    in_step(world, watched, 1, 2, 3)
    assert watched.reads > 0, "what came before it wanted anything"
    watched.reads = watched.decoded = 0
    in_step(world, watched, 4, 5, 6)
    assert (watched.reads, watched.decoded) == (0, 0)
    assert watched.log._offset is None, "and nothing is fetched for it"
    of_states = [record for record in published(world)[1] if record[0][:1] == b"s"]
    without = from_the_log(*range(1, 7))
    assert published(world)[0] == without[0]
    assert of_states == [record for record in without[1] if record[0][:1] == b"s"]


def test_what_another_one_has_decided_is_passed_on_too(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded as a proposal; its outputs are taken apart, once."""
    a, b, watched = world.members["a"], world.members["b"], Watched(world, monkeypatch)
    in_step(world, watched, 1, 2, 3)
    goes_on(b)
    watched.reads = watched.decoded = 0
    sends(world, 4)
    goes_on(b)
    assert b.replica is not None
    assert b.replica.won == 1
    goes_on(a)
    watched.turns()
    assert (watched.reads, watched.decoded) == (0, 1)
    assert len(world.driver.read(MESSAGES)) == 4


def test_who_falls_behind_reads_the_log(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    a, watched = world.members["a"], Watched(world, monkeypatch)
    in_step(world, watched, 1, 2, 3)
    watched.reads = 0
    monkeypatch.setattr(passed_on, "BYTES_MAX", 1_000)
    for number in range(4, 20):
        sends(world, number)
        goes_on(a)
    assert a.passed_on._bytes <= 1_000
    watched.turns()
    assert watched.reads > 0
    monkeypatch.setattr(passed_on, "BYTES_MAX", 1_000_000)
    in_step(world, watched, 20, 21, 22)
    watched.reads = 0
    in_step(world, watched, 23)
    assert watched.reads == 0, "and then it is given what is read"
    assert published(world)[0] == from_the_log(*range(1, 24))[0]


def test_a_lost_transaction_is_read_in_the_log(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken is not here any more."""
    a, watched = world.members["a"], Watched(world, monkeypatch)
    in_step(world, watched, 1, 2, 3)
    sends(world, 4)
    goes_on(a)
    commit = watched.publisher._transactions.commit

    def lost() -> None:
        raise Abortable(Code.TRANSACTION_LOST, "lost")

    monkeypatch.setattr(watched.publisher._transactions, "commit", lost)
    with pytest.raises(Abortable):
        watched.turns()
    monkeypatch.setattr(watched.publisher._transactions, "commit", commit)
    watched.reads = 0
    watched.turns()
    assert watched.reads > 0
    assert published(world)[0] == from_the_log(1, 2, 3, 4)[0]


def test_it_hears_that_a_note_was_not_taken_without_reading(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(world, monkeypatch)
    in_step(world, watched, 1, 2, 3)
    watched.reads = 0
    watched.log.refuses = lambda value: True
    with pytest.raises(TooMuch):
        in_step(world, watched, *range(4, 20))
    assert watched.reads == 0


def test_without_a_publisher_nothing_is_held(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    a = world.members["a"]
    sends(world, 1)
    goes_on(a)
    assert not a.passed_on._reads
    watched = Watched(world, monkeypatch)
    sends(world, 2)
    goes_on(a)
    assert a.passed_on._reads
    watched.publisher.close()
    assert not a.passed_on._reads
    sends(world, 3)
    goes_on(a)
    assert not a.passed_on._reads


def test_who_waits_for_a_replica_that_does_not_read_reads_itself(
    world: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it computes, or waits for other tasks that do."""
    a, b, watched = world.members["a"], world.members["b"], Watched(world, monkeypatch)
    in_step(world, watched, 1, 2, 3)
    goes_on(b)
    sends(world, 4)
    goes_on(b)
    watched.reads = watched.publisher._empty = 0
    watched.turns()
    assert len(world.driver.read(MESSAGES)) == 3, "it waits a little"
    while not watched.publisher.turn():
        pass
    assert len(world.driver.read(MESSAGES)) == 4
    watched.publisher.turn()  # what it has told itself
    assert watched.reads > 0
    assert not watched.publisher._rests
    goes_on(a)
    watched.publisher.turn()
    assert watched.publisher._rests, "the replica is where it is"
    in_step(world, watched, 5, 6, 7)
    watched.reads = 0
    in_step(world, watched, 8)
    assert watched.reads == 0
    assert len(world.driver.read(MESSAGES)) == 8


def test_what_was_read_of_another_log_is_not_given(world: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a replica that was frozen while the domain was started over: the offsets are those of before."""
    a, watched = world.members["a"], Watched(world, monkeypatch)
    a.passed_on.put("another", 1, b"", NOTE, None)
    assert not a.passed_on._reads
    in_step(world, watched, 1, 2, 3)
    a.passed_on.put("another", watched.publisher._history.offset_next, b"", NOTE, None)
    assert not a.passed_on._reads


def test_a_publisher_that_begins_meanwhile_gets_nothing_of_before() -> None:
    """Its replica had seen that something was wanted, and not yet of which log."""

    class Meanwhile(NoWaiting):
        def __enter__(self) -> None:
            passed._wanted = "another"

    passed = PassedOn()
    passed.begin(LOG)
    passed._arrival = Meanwhile()
    passed.put(LOG, 0, b"", NOTE, None)
    assert not passed._reads


def test_only_what_is_asked_for_is_given() -> None:
    """Who has read further in the log gets nothing twice, and who has not gets no part of it."""
    passed = PassedOn()
    passed.begin(LOG)
    assert passed.take(5, 0) is None, "nothing has been read yet"
    for offset in (5, 6, 7):
        passed.put(LOG, offset, b"", NOTE, None)
    assert passed.take(4, 0) is None
    assert passed.take(6, 0) == [Read(6, NOTE), Read(7, NOTE)]
    assert passed.take(8, 0) == []
    assert passed.take(10, 0) is None, "the replica has not come so far"
    for offset in range(8, 12):
        passed.put(LOG, offset, b"", NOTE, None)
    assert passed.take(10, 0) == [Read(10, NOTE), Read(11, NOTE)]
    assert passed.take(10, 0) is None, "it has gone back"
    passed.begin(LOG)
    assert passed.take(12, 0) is None, "what comes next may be something else"
    passed.put(LOG, 12, b"", NOTE, None)
    passed.end()
    assert passed.take(12, 0) is None


def test_records_without_a_value_are_bounded_too() -> None:
    passed = PassedOn()
    passed.begin(LOG)
    for offset in range(passed_on.BYTES_MAX // 100):
        passed.put(LOG, offset, None, None, None)
    assert passed.take(0, 0) is None


def test_who_waits_is_woken() -> None:
    waits, found = threading.Event(), list[Any]()

    class Told(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout)

    passed = PassedOn(Told())
    passed.begin(LOG)
    passed.put(LOG, 0, b"", NOTE, None)
    assert passed.take(0, 0) == [Read(0, NOTE)]
    waiting = threading.Thread(target=lambda: found.append(passed.take(1, 600)), daemon=True)
    waiting.start()
    assert waits.wait(30)
    passed.put(LOG, 1, b"", None, None)  # it locks, which it can when the other one has begun to wait
    waiting.join(30)
    assert found == [[Read(1, None)]]


def test_the_records_of_a_proposal_are_those_of_its_bytes(world: Replicas) -> None:
    """What is passed on beside a record is what the record says."""
    a = world.members["a"]
    assert a.replica is not None
    a.passed_on.begin(a.replica.progress.log_id)
    sends(world, 1, 2, 3)
    world.driver.send("runner.updates", b"no update")
    world.log.append("runner.updates", None, None, partition=0)
    goes_on(a)
    found = [read for read in a.passed_on._reads if read.writes]
    topics = {write[0] for read in found for write in read.writes or ()}
    assert {MESSAGES, world.topology.changelog, *world.topology.dead.values()} <= topics
    proposals = MsgpackProposals()
    for read in found:
        assert isinstance(read.record, Proposal)
        assert read.writes is not None
        body = read.record.body
        states = [(world.topology.changelog, 0, key, value, None) for key, value in body.states]
        assert [*proposals.writes(body.writes), *states] == [*read.writes]


def test_a_process_gives_both_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each life of a task one of its own: what came before it was another reading."""
    given: list[Any] = []

    def made(*_: Any, passed_on: PassedOn | None = None, **__: Any) -> object:
        given.append(passed_on)
        return object()

    for name in ("KafkaInputs", "KafkaDecisionLog", "KafkaSession"):
        monkeypatch.setattr(service, name, lambda *_, **__: None)
    monkeypatch.setattr(service, "Replica", made)
    monkeypatch.setattr(service, "Publisher", made)
    monkeypatch.setattr(service, "Replicated", lambda replica, publishing: publishing(replica))
    monkeypatch.setattr(service, "Publishing", lambda replica, publisher, *_, **__: publisher())
    nothing: Any = lambda *_: None  # noqa: E731 - stands for all that makes something
    make = service._replicas(RUNNER, nothing, {"bootstrap.servers": ""}, "a", nothing, nothing, nothing)
    make(0, lambda: None)
    make(0, lambda: None)
    assert all(isinstance(one, PassedOn) for one in given)
    assert [one is given[0] for one in given] == [True, True, False, False]
    assert given[2] is given[3]
