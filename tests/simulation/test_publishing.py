"""Who publishes of several replicas, and how the others hear of it."""

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, cast

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import Proposal
from onefold.processor.core.decision_log import Note
from onefold.processor.core.errors import Retriable, TooMuch
from onefold.processor.core.neighbours import NoNeighbours, Place
from onefold.processor.io.proposals import AvroProposals
from onefold.processor.runtime import publisher
from onefold.processor.runtime.changelog import Progress
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.publishing import LOOK_S, Publishing
from onefold.processor.runtime.undecided import Undecided
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.neighbours import SimulatedNeighbours, Street
from tests.support.replicas import RUNNER, Member, Replicas, update


def test_a_replica_takes_publishing_up_when_nobody_does() -> None:
    """Not before its patience is over, and not while somebody else is at it; the records are the same."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    a = world.members["a"]
    for _ in range(20):
        a.go_on()
    assert a.replica is not None
    replica = a.replica
    publishing = Publishing(replica, lambda: world.publisher(a), 10.0, clock=world.clock)
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
    assert replica.publishes
    for _ in range(3):
        next(life)
        a.go_on()
    assert replica.unpublished_since is None
    assert len(world.driver.read("runner.messages")) == 1

    other = world.publisher(world.members["b"])
    other.open()
    world.driver.send("runner.updates", update(1, 2))
    for _ in range(20):
        a.go_on()
    next(life)
    assert not publishing.publishes, "the other one has fenced it"
    assert not replica.publishes
    other.turn()
    assert len(world.driver.read("runner.messages")) == 2
    publishing.stop()
    deque(life, maxlen=0)
    assert publishing.failure is None


class Slow:
    """A publisher whose first transaction takes longer than the patience of all."""

    SECONDS = 10.0

    def __init__(self, world: Replicas, member: Member) -> None:
        self._world, self._publisher = world, world.publisher(member)
        self.progress, self.written = Progress(), 0

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
        lives[member] = Publishing(member.replica, make, 0.3 + 1.7 * number, clock=world.clock).life()
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
    publishing = Publishing(a.replica, make, 1.0, clock=world.clock)
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
    while a.replica.unpublished_since is not None:
        world.now += next(life) or LOOK_S
        a.go_on()

    other = world.publisher(world.members["b"])
    other.open()
    decide()
    seconds_until(False)
    assert seconds_until(True) < 4.0, "twice the usual time, and a second of its own"


@pytest.mark.parametrize("knows_it", [True, False])
def test_what_a_dead_one_published_is_taken_up_at_once(knows_it: bool) -> None:
    """By who has seen it die. Nobody's patience is over, and what is published already is left alone."""
    world, street = Replicas(RUNNER), Street()
    a, b = world.members.values()
    ours, theirs = SimulatedNeighbours("a", street), SimulatedNeighbours("b", street)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    late = world.publisher(b)
    late.open()
    world.driver.send("runner.updates", update(1, 2))
    for _ in range(20):
        a.go_on()
    late.turn()
    a.go_on()
    assert a.replica is not None
    assert theirs.place is not None
    if knows_it:
        ours.hears("b", theirs.place)
    publishing = Publishing(a.replica, lambda: world.publisher(a), 1e9, ours, clock=world.clock)
    life = publishing.life()

    def goes_on() -> bool:
        for _ in range(20):
            next(life)
            a.go_on()
        return publishing.publishes

    assert not goes_on()
    theirs.close()
    assert not goes_on(), "there is nothing to publish"
    world.driver.send("runner.updates", update(1, 3))
    assert goes_on() is knows_it
    assert len(world.driver.read("runner.messages")) == 2 + knows_it


@pytest.mark.promise("killed-publishers")
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_who_only_seems_to_be_dead_is_fenced_once(names: str) -> None:
    """Of those that live, each sees the others dead as there is no way between them: or all would begin again and again, for as
    long as that is so.
    """
    world = Replicas(RUNNER, names)
    lost = {name: Place("127.0.0.1", number) for number, name in enumerate(names, 1)}

    class Lost(NoNeighbours):
        def succeeds(self, name: str) -> Any:
            return lost.get(name)

    begun = Counter[str]()

    def begins(member: Member) -> Publisher:
        begun[member.name] += 1
        return world.publisher(member)

    publishing = []
    for member in world.members.values():
        member.go_on()
        assert member.replica is not None
        publishing.append(Publishing(member.replica, partial(begins, member), 1.0, Lost(), clock=world.clock))
    lives, dice = [one.life() for one in publishing], random.Random(7)
    for number in range(1, 600):
        world.driver.send("runner.updates", update(1, number))
        for member, one, life in zip(world.members.values(), publishing, lives, strict=True):
            member.go_on()
            member.go_on()
            # Who publishes is slower than the others look, in any order.
            if number % 12 == 0 if one.publishes else dice.random() < 0.5:
                next(life)
            world.now += LOOK_S
    assert len(world.driver.read("runner.messages")) > 100
    assert begun.total() <= 1 + len(names) * (len(names) - 1), (
        "one by its patience, and each once of each of the others"
    )
    assert set(begun) == set(names)


def test_who_dies_again_is_succeeded_again() -> None:
    """In another life it is at another place. Nor is it done with when what takes it up cannot begin."""
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    seen = [Place("127.0.0.1", 1)]

    class Seen(NoNeighbours):
        def succeeds(self, name: str) -> Any:
            return seen[0]

    begun: list[Publisher | None] = [None, world.publisher(member), None, world.publisher(member)]

    def begins() -> Publisher:
        made = begun.pop(0)
        if made is None:
            raise Retriable(Code.KAFKA_SILENT, "the broker is busy")
        return made

    member.go_on()
    assert member.replica is not None
    publishing = Publishing(member.replica, begins, 1e9, Seen(), clock=world.clock)
    life = publishing.life()

    def goes_on() -> None:
        for _ in range(8):
            world.driver.send("runner.updates", update(1, 1))
            member.go_on()
            member.go_on()
            world.now += LOOK_S
            next(life)

    goes_on()
    assert publishing.publishes
    assert len(begun) == 2
    fences = world.publisher(member)
    fences.open()
    goes_on()
    assert not publishing.publishes, "it was succeeded, and another one goes on"
    seen[0] = Place("127.0.0.1", 2)
    goes_on()
    assert publishing.publishes
    assert begun == []


def test_a_publisher_that_is_behind_is_heard_of_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is missed while it publishes all that waits at once, and another one begins anew."""
    monkeypatch.setattr(publisher, "INPUTS_MAX", 3)
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    for number in range(1, 8):
        world.driver.send("runner.updates", update(1, number))
        for _ in range(20):
            member.go_on()
    late = world.publisher(member)
    late.open()
    late.turn()

    published = [
        record.body["published"]
        for _, value in world.decision_log().read(0)
        if isinstance(record := AvroProposals().decode(value), Note) and "published" in record.body
    ]
    assert len(published) == 3
    assert len(world.driver.read("runner.messages")) == 7


def test_who_may_not_end_the_log_is_told_why() -> None:
    """Instead of asking for ever; and what was decided is published by then."""
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    world.driver.send("runner.updates", update(1, 1))
    for _ in range(20):
        member.go_on()
    taken = world.publisher(member)
    assert isinstance(taken._log, SimulatedDecisionLog)
    taken._log.refuses = lambda value: isinstance(AvroProposals().decode(value), Proposal)
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
    drops, drop = list[Mapping[str, int]](), Undecided.drop

    def counted(self: Undecided, decided: Mapping[str, int]) -> None:
        drops.append(decided)
        drop(self, decided)

    monkeypatch.setattr(Undecided, "drop", counted)
    version = away.progress.transactions
    away.turn()
    assert away.progress.transactions - version == 50
    assert len(drops) == 1
