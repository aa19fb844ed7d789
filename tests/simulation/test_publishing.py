"""Who publishes of several replicas, and how the others hear of it."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import cast

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import Proposal
from onefold.processor.core.decision_log import StatusRecord
from onefold.processor.core.errors import Fenced, TooMuch
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime.changelog import TaskProgress
from onefold.processor.runtime.input_buffer import InputBuffer
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.loop import Phase
from onefold.processor.runtime.pool import TaskPool
from onefold.processor.runtime.publisher import INPUTS_MAX, Publisher
from onefold.processor.runtime.publishing import LOOK_S, Publishing
from onefold.processor.runtime.task import Task
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from tests.support.replicas import RUNNER, Member, Replicas, update
from tests.support.tasks import log_decider
from tests.support.waiting import eventually


def test_a_replica_takes_publishing_up_when_nobody_does() -> None:
    """Not before its patience is over, and not while somebody else is at it; the records are the same."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    a = world.members["a"]
    for _ in range(20):
        a.go_on()
    assert a.replica is not None
    replica = a.replica
    publishing = Publishing(log_decider(replica), lambda: world.publisher(a), 10.0, clock=world.clock)
    life = publishing.life()
    next(life)
    assert not publishing.publishes
    # It was frozen: it hears first whether somebody else goes on.
    world.now += 100
    next(life)
    assert not publishing.publishes
    world.now += 10
    next(life)
    assert publishing.publishes
    for _ in range(3):
        next(life)
        a.go_on()
    assert replica.decider.unpublished_since is None
    assert len(world.driver.read("runner.messages")) == 1

    other = world.publisher(world.members["b"])
    other.open()
    world.driver.send("runner.updates", update(1, 2))
    for _ in range(20):
        a.go_on()
    next(life)
    assert not publishing.publishes, "the other one has fenced it"
    other.turn()
    assert len(world.driver.read("runner.messages")) == 2
    publishing.stop()
    deque(life, maxlen=0)
    assert publishing.failure is None


def test_records_of_the_output_topics_are_counted_for_each_transaction() -> None:
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    member.go_on()
    life = Publishing(log_decider(member.replica), lambda: world.publisher(member), 0.0, clock=world.clock).life()
    for number in (1, 2):
        world.driver.send("runner.updates", update(1, number))
        for _ in range(20):
            member.go_on()
        next(life)
    written = [*log_decider(member.replica).done.written]
    assert len(written) == 2
    assert min(written) > 0
    assert sum(written) == sum(len(world.driver.read(topic)) for topic in RUNNER.outputs)


def test_a_publisher_that_waits_ends_at_once() -> None:
    """Another replica has fenced it, and it waits for ten minutes."""
    world = Replicas(RUNNER, "a")
    world.driver.send("runner.updates", update(1, 1))
    for _ in range(20):
        world.members["a"].go_on()
    fenced = threading.Event()

    def make() -> Publisher:
        fenced.set()
        raise Fenced(Code.FENCED, "another replica publishes")

    clock = count(world.now, 1_000.0).__next__
    publishing = Publishing(log_decider(world.members["a"].replica), make, 600.0, clock=clock)
    publishing.start()
    eventually(fenced.is_set, 10, "it is fenced")
    publishing.stop()
    assert "publisher-0" not in {thread.name for thread in threading.enumerate()}


class Slow:
    """A publisher whose first transaction takes longer than the patience of all."""

    SECONDS = 10.0

    def __init__(self, world: Replicas, member: Member) -> None:
        self._world, self._publisher = world, world.publisher(member)
        self.progress, self.written = TaskProgress(), 0

    def open(self) -> None:
        self._publisher.open()
        self._until = self._world.now + self.SECONDS

    def turn(self) -> int:
        return self._publisher.turn() if self._world.now >= self._until else 0

    def close(self) -> None:
        self._publisher.close()


def test_replicas_whose_transactions_take_longer_than_their_patience_do_not_fence_each_other_for_ever() -> None:
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    waits_until = dict.fromkeys(world.members.values(), 0.0)
    for _ in range(20):
        for member in world.members.values():
            member.go_on()
    lives = {}
    for number, member in enumerate(world.members.values()):
        assert member.replica is not None
        make = cast("Callable[[], Publisher]", partial(Slow, world, member))
        lives[member] = Publishing(log_decider(member.replica), make, 0.3 + 1.7 * number, clock=world.clock).life()
    for _ in range(2_750):
        world.now += LOOK_S
        for member, life in lives.items():
            if world.now >= waits_until[member]:
                waits_until[member] = world.now + next(life)
            member.go_on()
    assert len(world.driver.read("runner.messages")) == 1


def test_a_replica_that_has_published_is_no_more_patient_than_before() -> None:
    """However often it was fenced before."""
    world = Replicas(RUNNER)
    a = world.members["a"]
    versions = count(1)

    def decide() -> None:
        world.driver.send("runner.updates", update(1, next(versions)))
        for _ in range(20):
            a.go_on()

    decide()
    assert a.replica is not None
    make = cast("Callable[[], Publisher]", partial(Slow, world, a))
    publishing = Publishing(log_decider(a.replica), make, 1.0, clock=world.clock)
    life = publishing.life()

    def seconds_until(publishes: bool) -> float:
        began = world.now
        while publishing.publishes != publishes:
            world.now += next(life) or LOOK_S
            assert world.now < began + 1_000
        return world.now - began

    for _ in range(4):
        seconds_until(True)
        other = world.publisher(world.members["b"])
        other.open()
        seconds_until(False)
    assert seconds_until(True) > 4.0
    while a.replica.decider.unpublished_since is not None:
        world.now += next(life) or LOOK_S
        a.go_on()

    other = world.publisher(world.members["b"])
    other.open()
    decide()
    seconds_until(False)
    assert seconds_until(True) < 4.0, "twice the usual time, and a second of its own"


def test_a_publisher_that_is_behind_is_heard_of_again_and_again() -> None:
    """Else it is missed while it publishes all that waits at once, and another one begins anew."""
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    decided = INPUTS_MAX // 2  # two decisions a transaction
    for number in range(4 * decided):
        world.driver.send("runner.updates", update(1, number + 1))
        if (number + 1) % decided == 0:
            for _ in range(20):
                member.go_on()
    late = world.publisher(member)
    late.open()
    late.turn()

    published = [
        record.body["published"]
        for _, value in world.decision_log().read(0)
        if isinstance(record := MsgpackProposals().decode(value), StatusRecord) and "published" in record.body
    ]
    assert len(published) == 2
    assert len(world.driver.read("runner.messages")) == 4 * decided


def test_who_may_not_end_the_log_is_told_why() -> None:
    """Instead of asking for ever; and what was decided is published by then."""
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    world.driver.send("runner.updates", update(1, 1))
    for _ in range(20):
        member.go_on()
    taken = world.publisher(member)
    assert isinstance(taken._log, SimulatedDecisionLog)
    taken._log.refuses = lambda value: isinstance(MsgpackProposals().decode(value), Proposal)
    beats = count()
    with pytest.raises(TooMuch):
        taken.take_back(lambda: next(beats))
    assert next(beats) > 0, "and whoever watches has seen it move"
    assert len(world.driver.read("runner.messages")) == 1


def test_who_was_away_sorts_out_once_a_look_what_others_have_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each decision it would look at thousands of records, and take minutes for what others decide in seconds."""
    world = Replicas(RUNNER)
    for member in world.members.values():
        for _ in range(10):
            member.go_on()
    away = world.members["b"].replica
    assert away is not None
    for number in range(1, 51):
        world.driver.send("runner.updates", update(number, number))
        for _ in range(3):
            world.members["a"].go_on()
    drops, drop = list[Mapping[str, int]](), InputBuffer.drop

    def counted(self: InputBuffer, decided: Mapping[str, int]) -> None:
        drops.append(decided)
        drop(self, decided)

    monkeypatch.setattr(InputBuffer, "drop", counted)
    version = away.progress.transactions
    away.turn()
    assert away.progress.transactions - version == 50
    assert len(drops) == 1


def test_an_instance_says_how_many_of_its_proposals_were_accepted() -> None:
    """In its status file, of all its tasks together."""
    world = Replicas(RUNNER)
    for number in range(1, 4):
        world.driver.send("runner.updates", update(1, number))
        world.drain()
    late = world.members["b"]

    def publishing(decider: LogDecider) -> Publishing:
        return Publishing(decider, lambda: world.publisher(late), 1e9, clock=world.clock)

    def make(partition: int, beat: Callable[[], None]) -> Task:
        return world.replica(late, beat=beat, publishing=publishing)

    pool = TaskPool(make, clock=world.clock)
    pool.start([0])
    world.driver.send("runner.updates", update(1, 4))
    try:
        eventually(
            lambda: pool.summary()[1] == "1 tasks, 1 of 1 accepted proposals, states in memory (as set)",
            10,
            str(pool.summary()),
        )
        assert pool.summary()[0] is Phase.RUNNING
    finally:
        pool.stop_all()
    assert "publisher-0" not in {thread.name for thread in threading.enumerate()}, "it publishes no more"
