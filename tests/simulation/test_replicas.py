"""Hot-hot on the simulated log: the real replica loop and the real publisher, interleaved and killed by a seed."""

import random
from typing import Any

import pytest

from onefold.processor.core.steps import REPLICA_STEPS
from onefold.processor.service import topology_of
from onefold.processor.testing import TopologyDriver
from tests.support.replicas import Replicas

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
