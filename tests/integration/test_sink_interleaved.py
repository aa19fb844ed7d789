"""Two sinks that land the same offsets, in every order that a seed can think of, with kills: every offset lands exactly once.

On a real Postgres, without Spark: see `tests/support/simulated_sinks.py`. A failure says its seed and its schedule; the same
seed runs the same schedule again.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.processor.loading import topology_of
from onefold.processor.testing import TopologyDriver
from onefold.spark_sink.landing.steps import STEPS
from tests.support.made_up_domain import write_domain
from tests.support.migrated import migrate_all
from tests.support.scheduler import Scheduler
from tests.support.simulated_processors import Processors
from tests.support.simulated_sinks import World, live, plan_of
from tests.support.simulated_topics import NAME, TOPIC

SEEDS = range(12)
# With -m matrix all of them.
FEW = pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.matrix] if seed > 1 else []) for seed in SEEDS]
)
KINDS = pytest.mark.parametrize("reduced", [False, True], ids=["record by record", "reduced"])

# Four seconds a seed.
pytestmark = pytest.mark.slow

Run = Callable[..., World]


@pytest.fixture
def run(tmp_path: Path, checkout: Path, database: str, reader: "psycopg.Connection[Any]", brief_logs: None) -> Run:
    """Runs two sinks by a seed, on tables that are empty."""
    write_domain(tmp_path, checkout, NAME)
    plan = plan_of(tmp_path, database)
    migrate_all(database, plan.sql_root)

    def one(seed: int, reduced: bool) -> World:
        reader.execute(f"TRUNCATE onefold.ledger, onefold.batch, {NAME}.notes, {NAME}.sums")
        with Scheduler(seed) as scheduler:
            world = World(plan, scheduler, reader, reduced)
            for writer in ("one", "two"):
                scheduler.start(writer, partial(live, world, writer))
            scheduler.run()
            world.check()
        return world

    return one


@pytest.mark.long  # 8 s
@KINDS
@FEW
def test_two_sinks_in_any_order_land_every_offset_once(run: Run, seed: int, reduced: bool) -> None:
    run(seed, reduced)


@pytest.mark.long  # 5 s
@KINDS
def test_a_seed_is_a_schedule(run: Run, reduced: bool) -> None:
    """With all that Postgres has a say in: who waits for whose lock, and what a kill leaves behind."""
    first, second = run(3, reduced), run(3, reduced)
    assert first.scheduler.schedule == second.scheduler.schedule
    assert first.counts == second.counts


@pytest.mark.long  # 4 s
def test_the_seeds_reach_what_they_are_for(run: Run) -> None:
    """Kills at every step of a landing, waits for the other sink's lock, batches that are cut, and batches of which the other
    sink has landed a part.
    """
    seen: Counter[str] = Counter()
    for seed in SEEDS[:2]:
        world = run(seed, True)
        seen.update(world.counts)
        seen.update(entry.partition("@")[2] or "blocked" for entry in world.scheduler.schedule)
    assert {name for name in ("kills", "cut", "trimmed", "failures", "blocked", *STEPS) if not seen[name]} == set()


@pytest.mark.long  # 4 s
@FEW
def test_two_processors_and_two_sinks_give_what_one_of_each_gives(
    tmp_path: Path, checkout: Path, database: str, reader: "psycopg.Connection[Any]", brief_logs: None, seed: int
) -> None:
    """The processors both want every task, the sinks all that is committed, and each of them is killed now and then."""
    write_domain(tmp_path, checkout, NAME)
    plan = plan_of(tmp_path, database)
    migrate_all(database, plan.sql_root)
    runner = topology_of("runner")
    driver, undisturbed = TopologyDriver(runner, partitions=2), TopologyDriver(runner, partitions=2)
    for number in range(1, 60):
        update = {"user_id": number % 7, "distance_meters": 10, "timestamp_utc": number, "run_id": 1}
        for one in (driver, undisturbed):
            one.send("runner.updates", {**update, "sequence_id": number})
    undisturbed.run()

    with Scheduler(seed) as scheduler:
        processors = Processors(driver, scheduler, "runner.messages", TOPIC)
        processors.start(("one", "two"))
        world = World(plan, scheduler, reader, reduced=False, topic=processors)
        for writer in ("left", "right"):
            scheduler.start(writer, partial(live, world, writer))
        scheduler.run()
        world.check()
        assert driver.read("runner.messages") == undisturbed.read("runner.messages")
        assert driver.states() == undisturbed.states()
        assert processors.fenced > 0
