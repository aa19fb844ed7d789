"""Which replica acts next: backoff after a rejected proposal, claims of tasks, and the takeover timeout of publishing."""

import random
from itertools import count

import pytest

from onefold.processor.core.decision import Proposal
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime.interval import Every
from onefold.processor.runtime.takeover import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    CLAIM_DECISIONS,
    CLAIM_EVERY_S,
    IDLE_S,
    TIMES_AS_LONG,
    ProposalBackoff,
    TakeoverTimeout,
    TaskShares,
)
from tests.support.clock import Clock
from tests.support.replicas import RUNNER, Replicas, elastic, outcome, update
from tests.support.tasks import log_decider

TIMEOUT_S = 0.6
LOOK_S = 0.05


def backoff(clock: Clock, shares: TaskShares | None = None) -> ProposalBackoff:
    return ProposalBackoff(0, shares or TaskShares("a", clock), clock)


def waited_s(one: ProposalBackoff, clock: Clock) -> float:
    """How long it waits from now on, when nothing is decided."""
    began = clock.now
    while one.waits():
        clock.now += max(one.left_s, 1e-6)
    return clock.now - began


def lose(one: ProposalBackoff, clock: Clock, took_s: float) -> None:
    """Another replica decides what this one had to propose for so long."""
    one.waits()
    clock.now += took_s
    one.decided(ours=False)


def test_the_last_author_goes_on_at_once_and_other_replicas_back_off() -> None:
    clock = Clock()
    one = backoff(clock)
    assert waited_s(one, clock) == 0
    one.decided(ours=True)
    assert waited_s(one, clock) == 0
    one.decided(ours=False)
    assert waited_s(one, clock) == pytest.approx(BACKOFF_S, abs=1e-3)
    assert not one.waits()


def test_the_backoff_begins_when_there_is_something_to_propose() -> None:
    clock = Clock()
    one = backoff(clock)
    one.decided(ours=False)
    clock.now += 10
    assert one.waits()


@pytest.mark.parametrize(("took_s", "then_s"), [(0.001, BACKOFF_S), (0.1, TIMES_AS_LONG * 0.1), (60.0, BACKOFF_MAX_S)])
def test_the_backoff_follows_the_time_of_a_decision_within_bounds(took_s: float, then_s: float) -> None:
    clock = Clock()
    one = backoff(clock)
    lose(one, clock, took_s)
    assert waited_s(one, clock) == pytest.approx(then_s, abs=1e-3)
    one.decided(ours=True)
    lose(one, clock, 0.001)
    assert waited_s(one, clock) == pytest.approx(BACKOFF_S, abs=1e-3)


def test_after_a_backlog_the_backoff_is_as_before() -> None:
    """With nothing to propose there was no backlog, however long the last decision took."""
    clock = Clock()
    one = backoff(clock)
    lose(one, clock, 60.0)
    one.decided(ours=False)
    assert waited_s(one, clock) == pytest.approx(BACKOFF_S, abs=1e-3)


def test_every_is_due_at_once_and_then_in_its_time() -> None:
    clock = Clock()
    every = Every(2.0, clock)
    assert [every.is_due(), every.is_due()] == [True, False]
    clock.now += 2.0
    assert [every.is_due(), every.is_due()] == [True, False]


class Seen:
    """What process a reads: some tasks that it decides, and others that b decides."""

    def __init__(self, ours: int, theirs: int) -> None:
        self.clock = Clock()
        self.shares = TaskShares("a", self.clock)
        self.tasks = {task: "a" if task < ours else "b" for task in range(ours + theirs)}
        self.decided()

    def decided(self) -> None:
        for task, author in self.tasks.items():
            self.shares.decided(task, author)

    def later(self, seconds: float = CLAIM_EVERY_S) -> None:
        self.clock.now += seconds
        self.decided()


@pytest.mark.parametrize(("ours", "theirs"), [(0, 2), (0, 4), (1, 3), (2, 4)])
def test_a_process_that_decides_two_tasks_less_claims_one(ours: int, theirs: int) -> None:
    """One, and the next one only when it can be seen what came of the first."""
    seen = Seen(ours, theirs)
    seen.later()
    assert not any(seen.shares.claim(task) for task in range(ours)), "these are its own"
    assert seen.shares.claim(ours)
    assert not seen.shares.claim(ours + 1)
    seen.later()
    assert seen.shares.claim(ours + 1)


@pytest.mark.parametrize(("ours", "theirs"), [(0, 1), (1, 1), (1, 2), (2, 2), (3, 1)])
def test_nothing_is_claimed_for_nothing(ours: int, theirs: int) -> None:
    """Where it would only be the other way round then."""
    seen = Seen(ours, theirs)
    seen.later()
    assert not any(seen.shares.claim(task) for task in (*seen.tasks, 99))


def test_a_process_that_restores_claims_nothing() -> None:
    """It would decide slowly beside that: a task that is read for the first time begins the time anew."""
    seen = Seen(0, 2)
    assert not seen.shares.claim(0)
    seen.later(CLAIM_EVERY_S - 0.1)
    seen.tasks[2] = "b"
    seen.later(0.2)
    assert not seen.shares.claim(0)
    seen.later()
    assert seen.shares.claim(0)


def test_idle_tasks_do_not_count() -> None:
    seen = Seen(0, 3)
    seen.clock.now += max(CLAIM_EVERY_S, IDLE_S)
    seen.shares.decided(0, "b")
    assert not seen.shares.claim(0)
    seen.shares.decided(1, "b")
    assert seen.shares.claim(0)


def test_a_claim_lasts_until_the_task_is_decided_or_others_decide_many_times() -> None:
    seen = Seen(0, 2)
    one = backoff(seen.clock, seen.shares)
    one.decided(ours=False)
    assert one.waits(), "it is too soon"
    seen.later()
    one.decided(ours=False)
    assert not one.waits()
    for _ in range(CLAIM_DECISIONS - 1):
        one.decided(ours=False)
        assert not one.waits()
    one.decided(ours=False)
    assert one.waits()
    seen.later()
    one.decided(ours=False)
    assert not one.waits()
    one.decided(ours=True)
    one.decided(ours=False)
    assert one.waits()


def proposers(world: Replicas) -> list[str]:
    records = [MsgpackProposals().decode(value) for _, value in world.decision_log().read(0)]
    return [record.proposer for record in records if isinstance(record, Proposal)]


def test_a_claimed_task_goes_on_without_a_pause() -> None:
    """The claiming replica proposes at once, and goes on to decide; the author of before backs off."""
    world = Replicas(RUNNER)
    a, b = world.members.values()
    for number in (1, 2):
        world.driver.send("runner.updates", update(1, number))
        for _ in range(40):
            a.go_on()
    world.drain()
    assert b.replica is not None
    log_decider(b.replica)._shares.decided(1, "a")
    world.now += CLAIM_EVERY_S
    for task in (0, 1):
        log_decider(b.replica)._shares.decided(task, "a")
    before = len(proposers(world))
    for number in (3, 4, 5):
        world.driver.send("runner.updates", update(1, number))
        b.go_on()
        b.go_on()
        a.go_on()
        world.drain()
    assert set(proposers(world)[:before]) == {"a"}
    assert set(proposers(world)[before:]) == {"b"}
    assert outcome(world.driver) == elastic([update(1, number) for number in range(1, 6)])


def test_where_two_processes_share_many_tasks_each_decides_half_of_them_in_the_end() -> None:
    """Whichever proposal comes first; and then nothing moves any more."""
    clock, dice = Clock(), random.Random(7)
    shares = {name: TaskShares(name, clock) for name in "ab"}
    authors = dict.fromkeys(range(8), "a")
    backoffs = {(name, task): ProposalBackoff(task, shares[name], clock) for name in shares for task in authors}
    history = []
    for _ in range(10_000):
        clock.now += 0.005
        for task in authors:
            ready = [name for name in shares if not backoffs[name, task].waits()]
            authors[task] = author = dice.choice(ready or ["a", "b"])
            for name in shares:
                shares[name].decided(task, author)
                backoffs[name, task].decided(ours=name == author)
        history.append(tuple(authors.values()))
    assert history[-1].count("a") in (3, 4, 5)
    assert len(set(history[-2_000:])) == 1


def taken_over_after(timeout: TakeoverTimeout, clock: Clock, since: float | None = None) -> float:
    """Seconds from a decision, which was made now unless `since` says when, until publishing is taken over."""
    since = clock.now if since is None else since
    for number in count():
        if timeout.is_over(since):
            return number * LOOK_S
        clock.now += LOOK_S
    raise AssertionError


def test_a_replica_that_was_paused_looks_again_before_it_takes_over() -> None:
    clock = Clock()
    timeout = TakeoverTimeout(TIMEOUT_S, clock)
    since = clock.now
    assert not timeout.is_over(since)
    clock.now += 60
    assert not timeout.is_over(since)
    # It has read of a published version meanwhile: the time begins anew.
    later = clock.now
    assert not timeout.is_over(later)
    clock.now += 60
    assert not timeout.is_over(later)
    # And of nothing more. However seldom it gets to look, it takes over in the end.
    clock.now += 60
    assert timeout.is_over(later)


def test_what_is_published_needs_no_takeover() -> None:
    clock = Clock()
    timeout = TakeoverTimeout(TIMEOUT_S, clock)
    for _ in range(100):
        clock.now += 1
        assert not timeout.is_over(None)
    assert TIMEOUT_S <= taken_over_after(timeout, clock) <= TIMEOUT_S + 2 * LOOK_S


def test_a_fenced_replica_waits_twice_as_long_each_time_until_it_has_published() -> None:
    clock = Clock()
    timeout = TakeoverTimeout(TIMEOUT_S, clock)
    since = clock.now
    for times in (1, 2, 4, 8, 16, 32, 32):
        assert TIMEOUT_S * times - LOOK_S <= taken_over_after(timeout, clock, since) <= TIMEOUT_S * times + 2 * LOOK_S
        timeout.fenced()
    timeout.published()
    assert taken_over_after(timeout, clock) <= TIMEOUT_S + 2 * LOOK_S


def test_a_fenced_replica_forgets_it_while_another_one_publishes() -> None:
    """Slowly: a version that took the other one long is no sign that the next one takes less."""
    clock = Clock()
    timeout = TakeoverTimeout(TIMEOUT_S, clock)
    for _ in range(4):
        timeout.fenced()

    def others_publish(versions: int) -> None:
        for _ in range(versions):
            clock.now += LOOK_S
            assert not timeout.is_over(clock.now)

    others_publish(1)
    assert taken_over_after(timeout, clock) > TIMEOUT_S * 8
    others_publish(250)
    assert taken_over_after(timeout, clock) <= TIMEOUT_S * 1.1 + 2 * LOOK_S


def test_what_passed_while_a_replica_published_is_no_waiting() -> None:
    clock = Clock()
    timeout = TakeoverTimeout(TIMEOUT_S, clock)
    since = clock.now
    clock.now += 60
    timeout.fenced()
    assert taken_over_after(timeout, clock, since) >= 2 * TIMEOUT_S - LOOK_S
