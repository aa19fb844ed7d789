"""Replicas in every order that a seed can think of, also within a turn, with 1,000 kills: each input is taken once, all readers
agree, and what is published is what one task would have written.

A failure says its seed and its schedule; the same seed runs the same schedule again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onefold.processor.core.steps import DISK_STEPS, REPLICA_STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.runtime import takeover
from onefold.processor.testing import TopologyDriver
from onefold.verify.loading import workload
from tests.support.interleaved_replicas import Interleaved
from tests.support.replicas import (
    AVERAGES,
    BANK,
    KILLS,
    RUNNER,
    elastic,
    elastic_in_the_order_of,
    judged,
    numbers,
    outcome,
    transfers,
    updates,
)
from tests.support.scheduler import Scheduler

# Of two inputs the seed whose life has by far the most turns.
LONGEST = 2


def lived(
    seed: int, topology: Topology = RUNNER, given: Callable[[], Iterator[tuple[str, Any]]] = updates
) -> tuple[Interleaved, list[str]]:
    """A life with so many kills, and its schedule: of two or three replicas, of which some keep their states on disk, and whose
    publisher deletes what the changelog has.
    """
    driver = TopologyDriver(topology)
    with Scheduler(seed) as scheduler, pytest.MonkeyPatch.context() as patch:
        # Lives are short here.
        patch.setattr(takeover, "CLAIM_EVERY_S", 0.2)
        world = Interleaved(
            scheduler,
            driver,
            "abc" if seed % 2 else "ab",
            given(),
            kills=KILLS,
            deletes=seed % 3 == 0,
            memory_bytes=0 if seed % 4 > 1 else None,
        )
        scheduler.run()
        assert world.killed.total() == KILLS
        if topology is not BANK:
            expected = elastic(world.sent) if topology is RUNNER else elastic_in_the_order_of(driver)
            assert outcome(driver) == expected
        assert world.states_at_the_end == [driver.states()] * len(world.running)
    return world, scheduler.schedule


@pytest.mark.long  # 26 s
@pytest.mark.parametrize("seed", range(1_000 // KILLS))
def test_a_thousand_kills_within_turns_change_nothing(seed: int) -> None:
    lived(seed)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed == LONGEST else ()) for seed in range(200 // KILLS)]
)
def test_nor_where_two_inputs_are_folded_in_an_order_that_replicas_decide(seed: int) -> None:
    world, _ = lived(seed, AVERAGES, numbers)
    assert len(world.sent) > KILLS


@pytest.mark.long  # 10 s
@pytest.mark.parametrize("seed", range(200 // KILLS))
def test_nor_where_a_pipeline_feeds_itself(seed: int) -> None:
    """What one decision queues is an input of a later one, when somebody has published it: of each transfer once, and the
    money is there in the end.
    """
    world, _ = lived(seed, BANK, transfers)
    expected, findings = judged(world.driver)
    assert findings == []
    lines = {(line["account"], line["entry"]): line for line in world.driver.read("bank.entries")}
    names = [column.name for column in workload("bank").outputs["bank.entries"].columns]
    assert {key: tuple(line[name] for name in names) for key, line in lines.items()} == {
        key: row for key, (row, _) in expected.model.rows["bank.entries"].items()
    }
    assert {line["kind"] for line in lines.values()} >= {"open", "withdraw", "deposit", "return"}
    assert sum(line["amount"] for line in lines.values()) == 400, "four accounts began with 100 each"
    assert min(line["balance"] for line in lines.values()) >= 0


def test_a_seed_is_a_schedule() -> None:
    """So that what has failed once can be looked at."""
    assert lived(7)[1] == lived(7)[1]


@pytest.mark.long  # 10 s
def test_the_seeds_reach_what_they_are_for() -> None:
    """Kills wherever a process can be: within a turn of the replica, of the publisher, and of what is on disk."""
    killed: Counter[str] = Counter()
    claims = 0
    for seed in range(24):
        world, _ = lived(seed)
        killed.update(world.killed)
        claims += world.claims
    reached = {"append", "read", "poll", "topic ids", "pause", "open", "restore", *REPLICA_STEPS}
    assert reached - killed.keys() == set()
    assert killed.keys() & set(DISK_STEPS)
    assert claims, "of a task that another replica decided"
