"""What replicas tell of themselves, on the simulated log."""

import threading
from typing import Any

from onefold.processor.core.decision_log import Note
from onefold.processor.io.proposals import AvroProposals
from onefold.processor.loading import topology_of
from onefold.processor.runtime.loop import Phase
from onefold.processor.runtime.pool import TaskPool
from onefold.processor.runtime.publishing import Publishing
from onefold.processor.runtime.replicated import Replicated
from onefold.processor.runtime.telling import TELL_EVERY_S
from tests.support.replicas import Replicas
from tests.support.waiting import eventually

RUNNER = topology_of("runner")


def update(user: int, number: int) -> dict[str, int]:
    return {"user_id": user, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


def told(world: Replicas, name: str) -> list[Any]:
    """What a replica has told about itself so far."""
    log = world.decision_log()
    records = [AvroProposals().decode(value) for _, value in log.read(0)]
    notes = [record.body for record in records if isinstance(record, Note) and record.proposer == name]
    return [body["replica"] for body in notes if "replica" in body]


def test_a_replica_tells_how_it_is_once_a_second_at_most() -> None:
    """However many decisions there are; and the last of them as well, when it is quiet."""
    world = Replicas(RUNNER)
    a, b = world.members.values()
    began = world.now
    for number in range(1, 1_500):
        world.driver.send("runner.updates", update(number % 3, number))
        a.go_on()
        b.go_on()
    assert a.replica is not None
    assert a.replica.decided > 300
    assert 2 <= len(told(world, "a")) <= (world.now - began) / TELL_EVERY_S + 1

    world.drain()
    world.now += TELL_EVERY_S
    for _ in range(3):
        a.go_on()
        b.go_on()
    last_a, last_b = told(world, "a")[-1], told(world, "b")[-1]
    assert last_a["version"] == last_a["published"] == a.replica.progress.transactions == last_b["version"]
    assert last_a["decided"] == last_a["won"] + last_b["won"]
    assert not last_a["publishes"]


def test_a_replica_that_nothing_happens_to_tells_nothing() -> None:
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    a = world.members["a"]
    assert a.replica is not None
    world.now += TELL_EVERY_S
    a.go_on()
    before = told(world, "a")
    world.now += 100 * TELL_EVERY_S
    for _ in range(50):
        a.go_on()
    assert told(world, "a") == before

    a.replica.publishes = True
    world.now += TELL_EVERY_S
    a.go_on()
    assert told(world, "a") == [*before, before[-1] | {"publishes": True}]


def test_an_instance_says_how_many_decisions_it_has_won() -> None:
    """In its status file, of all its tasks together."""
    world = Replicas(RUNNER)
    for number in range(1, 4):
        world.driver.send("runner.updates", update(1, number))
        world.drain()
    late = world.members["b"]

    def make(partition: int, beat: Any) -> Replicated:
        publishing = Publishing(world.replica(late), lambda: world.publisher(late), 1e9, clock=world.clock)
        return Replicated(world.replica(late, beat=beat), lambda replica: publishing)

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
