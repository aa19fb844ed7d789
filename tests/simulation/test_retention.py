"""What is deleted from a decision log, and that nobody misses it."""

from collections.abc import Callable
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import begin
from onefold.processor.core.errors import Corrupted, Refused, Retriable
from onefold.processor.core.steps import REPLICA_STEPS
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.runtime.changelog import DecidedIn, TaskProgress
from onefold.processor.runtime.log_decider import standing_of
from onefold.processor.runtime.retention import Retention
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.log import SimulatedLog
from tests.support.clock import Clock
from tests.support.coded import raises
from tests.support.replicas import RUNNER, Member, Replicas, elastic, killed_25_times, outcome, update, updates
from tests.support.tasks import log_decider


def start(world: Replicas) -> int:
    return world.log.identity(RUNNER.decisions, 0).start


def deleting(names: str = "ab", young: int = 0) -> Replicas:
    world = Replicas(RUNNER, names)
    world.young = young
    return world


def decide(world: Replicas, member: Member, first: int, last: int) -> None:
    """Updates of those numbers, decided by the member and published by it, some at a time."""
    for number in range(first, last):
        world.driver.send("runner.updates", update(1, number))
        for _ in range(4):
            member.go_on()
            member.publish()


def progresses(world: Replicas) -> list[TaskProgress]:
    """All that lie in the changelog, in order."""
    found, _ = world.log.read(RUNNER.changelog, 0, 0)
    return [TaskProgress.decode(entry.value or b"") for _, entry in found if entry.key == PROGRESS_KEY]


@pytest.mark.parametrize("seed", range(40))
def test_kills_change_nothing_while_decisions_are_deleted(seed: int) -> None:
    """Killed as in `test_replicas`, and at the steps of deleting too; whoever comes back finds what it needs."""
    world = deleting("abc" if seed % 2 else "ab", young=seed % 3)
    sent = killed_25_times(world, seed, updates())

    assert outcome(world.driver) == elastic(sent)
    assert start(world) > 0


@pytest.mark.parametrize("step", REPLICA_STEPS)
def test_whoever_dies_at_a_step_of_publishing_or_deleting_leaves_enough(step: str) -> None:
    world = deleting()
    a, b = world.members.values()
    decide(world, a, 1, 4)
    for times in (1, 2):
        a.dies_at = (step, times)
        decide(world, a, 4 * times, 4 * times + 4)
        a.dies_at = None
        b.kill()
        b.go_on()
        b.publish()
    world.drain()

    assert {message["sequence_id"] for message in world.driver.read("runner.messages")} == {1, 2, 3, *range(4, 12)}
    assert len(world.driver.read("runner.messages")) == 11
    assert b.replica is not None
    assert b.replica.store.snapshot() == world.driver.states()


def test_who_is_far_behind_starts_from_the_changelog_again() -> None:
    """What it would have read next is deleted. It asks nobody, and misses nothing."""
    world = deleting()
    a, b = world.members.values()
    decide(world, a, 1, 3)
    b.go_on()
    assert b.replica is not None
    behind = log_decider(b.replica)._history.offset_next
    decide(world, a, 3, 40)
    assert start(world) > behind

    first = b.replica
    b.go_on()
    assert b.replica is None, "what it had in memory is of no use"
    b.go_on()
    assert b.replica is not first
    world.drain()
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == list(range(1, 40))
    assert b.replica is not None
    assert b.replica.store.snapshot() == world.driver.states()


def test_decisions_are_deleted_while_a_replica_restores() -> None:
    """Between its reading of the changelog and its reading of the log. It begins again, and nobody is asked."""
    world = deleting()
    a, b = world.members.values()
    decide(world, a, 1, 3)
    busy = [True]

    def step(name: str) -> None:
        if name == "after_restore" and busy:
            busy.clear()
            decide(world, a, 3, 20)

    b.replica = world.replica(b, step=step)
    with raises(Corrupted, Code.RECORDS_DELETED):
        b.replica.open()
    assert not busy
    b.kill()
    world.drain()
    assert b.replica is not None
    assert b.replica.store.snapshot() == world.driver.states()


def test_what_the_changelog_does_not_have_is_not_deleted() -> None:
    """Nor what it has only since the last transaction, whose markers may still be on their way."""
    world = deleting("a")
    a = world.members["a"]
    for number in range(1, 20):
        decide(world, a, number, number + 1)
        known = progresses(world)
        if len(known) > 1 and known[-2].decided_in is not None:
            begin(world.log.identity(RUNNER.decisions, 0), standing_of(known[-2]))
    assert start(world) > 0


def test_the_young_are_kept() -> None:
    world = deleting("a", young=30)
    decide(world, world.members["a"], 1, 20)
    end = world.log.identity(RUNNER.decisions, 0).end
    assert end - 30 - 10 < start(world) <= end - 30


def test_a_log_that_somebody_has_cut_off_further_is_refused() -> None:
    """What the changelog does not have is gone then."""
    world = Replicas(RUNNER)
    a, b = world.members.values()
    decide(world, a, 1, 3)
    world.driver.send("runner.updates", update(1, 3))
    while a.replica is not None and not a.replica.decider.unpublished_since:
        a.go_on()
    world.log.truncate(RUNNER.decisions, 0, world.log.identity(RUNNER.decisions, 0).end)

    with raises(Refused, Code.DECISIONS_LOST):
        b.go_on()
    with raises(Refused, Code.DECISIONS_LOST):
        world.publisher(b).open()


def test_elastic_and_back_with_a_log_whose_beginning_is_gone() -> None:
    world = deleting("a")
    decide(world, world.members["a"], 1, 10)
    world.drain()
    assert start(world) > 0
    world.members["a"].kill()
    world.driver.send("runner.updates", update(1, 10))
    world.driver.run()
    world.driver.stop()
    decide(world, world.members["a"], 11, 20)
    world.drain()
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == list(range(1, 20))


class OneLog:
    """A log of a hundred records, and what a retention deletes of it."""

    def __init__(self) -> None:
        self.log = SimulatedLog()
        self.log.create("x.decisions", 1)
        for _ in range(100):
            self.log.append("x.decisions", None, b"of somebody", partition=0)

    def progress(self, offset: int, **others: Any) -> TaskProgress:
        log_id = others.pop("log_id", self.log.identity("x.decisions", 0).topic_id)
        return TaskProgress(decided_in=DecidedIn(log_id, offset, opened=True), **others)

    def start_after(self, known: TaskProgress, committed: Callable[[], bytes | None] | None = None) -> int:
        retention = Retention(0, committed=committed, clock=lambda: 0.0)
        retention.turn(SimulatedDecisionLog(self.log, "x.decisions", 0), known)
        return self.log.identity("x.decisions", 0).start


@pytest.mark.parametrize(("kept_s", "every_s"), [(50.0, 5.0), (3600.0, 10.0)], ids=["a tenth", "ten seconds at most"])
def test_the_log_is_looked_at_once_in_a_tenth_of_the_age(kept_s: float, every_s: float) -> None:
    one, looks, clock = OneLog(), list[float](), Clock()
    log = SimulatedDecisionLog(one.log, "x.decisions", 0)
    known = one.progress(50)

    def committed() -> bytes:
        looks.append(clock())
        return known.encode()

    retention = Retention(kept_s, committed=committed, clock=clock)
    for at_s in (0.0, every_s - 0.01, every_s):
        clock.now = at_s
        retention.turn(log, known)
    assert looks == [0.0, every_s]


def test_what_readers_of_committed_records_see_counts() -> None:
    one = OneLog()
    assert one.start_after(one.progress(50), lambda: one.progress(20).encode()) == 20
    assert one.start_after(one.progress(50)) == 50


@pytest.mark.parametrize("seen", [None, TaskProgress().encode()], ids=["nothing", "elastic"])
def test_nothing_is_deleted_while_readers_see_no_place_in_the_log(seen: bytes | None) -> None:
    one = OneLog()
    assert one.start_after(one.progress(50), lambda: seen) == 0


def test_of_another_log_nothing_is_deleted() -> None:
    one = OneLog()
    assert one.start_after(one.progress(50, log_id="another")) == 0


def test_what_cannot_be_deleted_stays_and_the_publisher_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once."""
    one = OneLog()

    class Away(SimulatedDecisionLog):
        def delete_before(self, offset: int) -> None:
            raise Retriable(Code.KAFKA_SILENT, "nobody answers")

    retention = Retention(0, clock=lambda: 0.0)
    for _ in range(3):
        retention.turn(Away(one.log, "x.decisions", 0), one.progress(50))
    assert capsys.readouterr().out.count("nobody answers") == 1
