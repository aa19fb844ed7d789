"""Hot-hot on the simulated log: the real replica loop and the real publisher, interleaved and killed by a seed."""

import random
from collections import deque
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from onefold.processor.core.decision import Kind, Proposal
from onefold.processor.core.decision_log import Note
from onefold.processor.core.errors import Refused
from onefold.processor.core.steps import REPLICA_STEPS
from onefold.processor.core.values import Event
from onefold.processor.io.proposals import AvroProposals
from onefold.processor.loading import topology_of
from onefold.processor.runtime.publishing import Publishing
from onefold.processor.testing import TopologyDriver
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from tests.support.replicas import Killed, Replicas

RUNNER = topology_of("runner")


def update(user: int, number: int) -> dict[str, int]:
    return {"user_id": user, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


def outcome(driver: TopologyDriver) -> dict[str, Any]:
    """What anybody can see, in the order in which it came."""
    seen: dict[str, Any] = {
        topic: driver.table(topic) if rows else driver.read(topic) for topic, rows in RUNNER.outputs.items()
    }
    return seen | {"dead": driver.records("runner.updates.dead"), "states": driver.states()}


def elastic(sent: list[Any]) -> dict[str, Any]:
    driver = TopologyDriver(RUNNER)
    for value in sent:
        driver.send("runner.updates", value)
    driver.run()
    return outcome(driver)


def values(count: int) -> list[Any]:
    dice = random.Random(7)
    return [b"no event" if number % 17 == 0 else update(dice.randrange(5), number) for number in range(1, count)]


def test_two_replicas_give_what_one_task_gives() -> None:
    """Outputs, states, dead letters, each once and in the same order."""
    world = Replicas(RUNNER)
    sent = values(60)
    for value in sent:
        world.driver.send("runner.updates", value)
        world.run(seed=len(str(value)), turns=2)
    world.drain()

    assert outcome(world.driver) == elastic(sent)


@pytest.mark.parametrize("seed", range(40))
def test_kills_change_nothing(seed: int) -> None:
    """Replicas and publishers, killed at steps that the seed chooses, 25 times in each of these lives."""
    world = Replicas(RUNNER, "abc" if seed % 2 else "ab")
    sent = values(80)
    unsent = list(sent)
    kills = [0]

    def act(dice: random.Random) -> None:
        if unsent and dice.random() < 0.2:
            world.driver.send("runner.updates", unsent.pop(0))
        if kills[0] < 25 and dice.random() < 0.15:
            member = dice.choice(list(world.members.values()))
            member.dies_at = (dice.choice(REPLICA_STEPS), dice.randint(1, 3))
            kills[0] += 1

    world.run(seed, 600, act)
    for value in unsent:
        world.driver.send("runner.updates", value)
    for member in world.members.values():
        member.dies_at = None
    world.drain()

    assert outcome(world.driver) == elastic(sent)


def longer(state: Any, event: Event) -> Any:
    """The runner's rule in another version of the program: the same run, counted as if each step were ten times as long."""
    tenfold = msgspec.structs.replace(event.value, distance_meters=10 * event.value.distance_meters)
    return RUNNER.handle(state, event._replace(value=tenfold))


@pytest.mark.parametrize("seed", range(10))
def test_replicas_of_two_versions_never_diverge(seed: int) -> None:
    """Whoever decided a step, all have its bytes; a wrong replica may win, and every input is taken once."""
    world = Replicas(RUNNER, "ab", {"b": replace(RUNNER, handle=longer)})
    for number in range(1, 60):
        world.driver.send("runner.updates", update(number % 3, number))
        world.run(1000 * seed + number, 4)
        if number % 20 == 0:  # the one that wins has a pause
            pauses = world.members["ab"[number // 20 % 2]]
            others = [member for member in world.members.values() if member is not pauses]
            world.driver.send("runner.updates", update(7, number))
            for _ in range(40):
                others[0].go_on()
    world.drain()
    a, b = (member.replica for member in world.members.values())

    assert a is not None
    assert b is not None
    assert a.won > 0
    assert b.won > 0
    assert a.store.snapshot() == b.store.snapshot() == world.driver.states()
    assert sum(a.progress.counts) == 61
    meters = [message["distance_meters"] for message in world.driver.read("runner.messages")]
    assert len(meters) == 61
    assert set(meters) == {10, 100}


def test_a_record_that_kills_every_replica_is_set_aside() -> None:
    """After three crashes of one of them at it alone; nobody else's record is."""

    def deadly(state: Any, event: Event) -> Any:
        if event.value.sequence_id == 7:
            raise Killed("7")
        return RUNNER.handle(state, event)

    world = Replicas(replace(RUNNER, handle=deadly))
    for number in range(1, 20):
        world.driver.send("runner.updates", update(1, number))
    world.drain()

    ((_, value, headers),) = world.driver.records("runner.updates.dead")
    assert b'"sequence_id": 7' in (value or b"")
    assert headers["onefold-reason"] == b"the processor crashed 3 times at this record"
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [
        number for number in range(1, 20) if number != 7
    ]


def test_what_comes_late_changes_nothing() -> None:
    """A replica hung with its proposal under way; others decided. It arrives twice."""
    world = Replicas(RUNNER)
    slow = world.members["a"]
    world.driver.send("runner.updates", update(1, 1))
    for _ in range(4):
        slow.go_on()
    assert slow.replica is not None
    late: list[bytes] = []
    decision_log = slow.replica._log
    assert isinstance(decision_log, SimulatedDecisionLog)
    decision_log.late = late
    world.driver.send("runner.updates", update(1, 2))
    while not late:
        slow.go_on()
    other = world.members["b"]
    for _ in range(50):
        other.go_on()
    decision_log.late = None
    for value in [*late, *late]:
        decision_log.append(value)
    world.driver.send("runner.updates", update(1, 3))
    world.drain()

    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [1, 2, 3]
    assert slow.replica.store.snapshot() == world.driver.states()


def test_an_input_that_was_made_again_is_refused() -> None:
    """By a replica that runs, and by one that starts."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    world.log.create("runner.updates", 1)
    world.driver.send("runner.updates", update(1, 1))

    for member in world.members.values():
        with pytest.raises(Refused, match="deleted and created again"):
            member.go_on()
        member.kill()
        with pytest.raises(Refused, match="deleted and created again"):
            member.go_on()


def test_a_decision_log_that_lost_what_comes_next_is_refused() -> None:
    """What was decided cannot be known then; a person is asked."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    world.log.create(RUNNER.decisions, 1)
    for member in world.members.values():
        member.kill()
        with pytest.raises(Refused, match="the decision log was deleted and created again"):
            member.go_on()


def test_a_replica_that_comes_back_after_the_task_was_taken_back_is_told_so() -> None:
    """It ends with a sentence, and the task that decides by Kafka transactions goes on."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    world.driver.send("runner.updates", update(1, 2))
    world.driver.run()

    with pytest.raises(Refused, match="decided by Kafka transactions again"):
        world.members["a"].go_on()
    world.driver.send("runner.updates", update(1, 3))
    world.driver.run()
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [1, 2, 3]


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


def test_what_an_earlier_life_proposed_is_not_our_own() -> None:
    """It has the same name, and the version that we propose for; what is decided is what it computed."""
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    world.driver.send("runner.updates", update(1, 1))
    world.drain()

    def proposed() -> bytes:
        """By a life that has read the second record, and whose append is long under way."""
        assert member.replica is not None
        decision_log = member.replica._log
        assert isinstance(decision_log, SimulatedDecisionLog)
        decision_log.late = []
        while not decision_log.late:
            member.go_on()
        return decision_log.late[0]

    world.driver.send("runner.updates", update(1, 2))
    earlier = proposed()
    member.kill()
    member.topology = replace(RUNNER, handle=longer)
    member.go_on()
    own = proposed()
    assert own != earlier
    assert member.replica is not None
    world.decision_log().append(earlier)
    world.decision_log().append(own)
    world.drain()

    assert [message["distance_meters"] for message in world.driver.read("runner.messages")] == [10, 10]
    assert member.replica.store.snapshot() == world.driver.states()


def test_an_opening_of_an_earlier_time_opens_nothing() -> None:
    """It was under way when the task was taken back, and comes when it is about to be opened again."""
    world = Replicas(RUNNER, "a")
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    openings = [
        value
        for _, value in world.decision_log().read(0)
        if (record := AvroProposals().decode(value)) and isinstance(record, Proposal) and record.kind is Kind.OPEN
    ]
    world.members["a"].kill()
    world.driver.send("runner.updates", update(1, 2))
    world.driver.run()
    world.driver.stop()

    world.members["a"].go_on()
    replica = world.members["a"].replica
    assert replica is not None
    version = replica.progress.transactions
    world.decision_log().append(openings[0] or b"")
    world.driver.send("runner.updates", update(1, 3))
    world.drain()
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [1, 2, 3]
    assert replica.progress.counts.accepted == 3
    assert replica.progress.transactions > version, "a version that was given once is not given again"


def test_what_replicas_tell_decides_nothing() -> None:
    """Also of one that says that it is far ahead."""
    world = Replicas(RUNNER)
    sent = values(40)
    for value in sent:
        world.driver.send("runner.updates", value)
        for name in ("a", "c"):
            boast = Note(0, name, {"replica": {"version": 10**9, "won": 1, "decided": 1, "published": 10**9}})
            world.decision_log().append(AvroProposals().encode_note(boast))
        world.run(seed=len(str(value)), turns=2)
    world.drain()

    assert outcome(world.driver) == elastic(sent)
    for member in world.members.values():
        assert member.replica is not None
        assert member.replica.published <= member.replica.progress.transactions
