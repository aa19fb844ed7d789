"""One record that kills the process must not kill it for ever, and must not take its neighbours along."""

import dataclasses
from typing import Any

import pytest

from processor.core.values import Event
from processor.runtime.caution import CRASHES_MAX, Caution
from processor.service import topology_of
from processor.testing import Crash, TopologyDriver

RUNNER = topology_of("runner")
POISON = 666


def killed_by_poison(state: Any, event: Event) -> tuple[Any, Any]:
    """A handler with a bug that ends the process."""
    if event.value.distance_meters == POISON:
        raise Crash("segmentation fault")
    return RUNNER.handle(state, event)


def driver_with(*distances: int) -> TopologyDriver:
    driver = TopologyDriver(dataclasses.replace(RUNNER, handle=killed_by_poison))
    for number, distance in enumerate(distances, 1):
        value = {"user_id": 1, "distance_meters": distance, "timestamp_utc": number, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", value)
    return driver


@pytest.mark.parametrize("before", [0, 1, 7])
def test_the_third_crash_at_one_record_alone_sets_it_aside(before: int) -> None:
    """It becomes a dead letter that says why; the records around it are folded as if it had never been there."""
    driver = driver_with(*[10] * before, POISON, *[10] * 5)
    driver.run()

    (letter,) = driver.records("runner.updates.dead")
    assert b"runner.updates/0/%d" % before == letter[2]["onefold-source"]
    assert b"crashed 3 times" in letter[2]["onefold-reason"]
    assert driver.restarts == 2 + CRASHES_MAX
    assert 10 * (before + 5) == driver.table("runner.stats")[1, 1]["total_meters"]


def test_two_poisonous_records_are_both_set_aside() -> None:
    """One after the other; the first does not count for the second."""
    driver = driver_with(10, POISON, 10, POISON, 10)
    driver.run()

    assert sorted(headers["onefold-source"] for _, _, headers in driver.records("runner.updates.dead")) == [
        b"runner.updates/0/1",
        b"runner.updates/0/3",
    ]
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30


@pytest.mark.parametrize("step", ["after_begin", "before_commit", "after_restore"])
def test_kills_from_outside_set_nothing_aside(step: str) -> None:
    """A hundred kills at arbitrary moments are no reason to give a record up."""
    driver = driver_with(10)
    for number in range(2, 102):
        value = {"user_id": 1, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", value)
        driver.kill()
        driver.crash_at(step, 1 + number % 2)
        driver.run()

    assert driver.restarts >= 50
    assert driver.records("runner.updates.dead") == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 1010


def test_caution_ends_when_all_is_well() -> None:
    """After a quiet moment the next owner folds large batches again."""
    driver = driver_with(10)
    driver.crash_at("before_commit", 2)
    driver.run()

    assert driver.restarts == 1
    assert Caution() == driver.task().caution


def test_a_task_that_ends_in_good_order_leaves_no_caution() -> None:
    """A restart is not a crash."""
    driver = driver_with(10)
    driver.task()
    driver.stop()

    assert driver.task().caution.level == 0
