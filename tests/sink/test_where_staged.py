"""Where a batch is staged: through the driver, or by executors; with the ends of the sink made up."""

import threading
from collections.abc import Callable

import pytest

from onefold.spark_sink.landing import batches
from onefold.spark_sink.landing.batches import Batches
from tests.support.frames import ANSWER_S, LEFT, Rows, World, ended, run
from tests.support.waiting import eventually

Make = Callable[..., Batches]


@pytest.mark.parametrize(("offsets", "where"), [(5, "driver"), (6, "executors")])
def test_where_a_batch_is_staged_is_a_matter_of_its_offsets(world: World, make: Make, offsets: int, where: str) -> None:
    one = make(driver_offsets=5)
    run(world, one, 0, {LEFT: offsets}, Rows((*LEFT, 4)))
    one.close()
    assert world.staged_by[-1] == where


@pytest.mark.parametrize(("value_bytes", "where"), [(5, "driver"), (6, "executors")])
def test_lines_that_may_not_fit_into_memory_go_by_the_executors(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch, value_bytes: int, where: str
) -> None:
    """Of the first batch some records say so, a line being twice as long; of others the lines of the one before."""
    monkeypatch.setattr(batches, "_UNSEEN_OFFSETS", 9)
    one = make(driver_lines=200)
    world.value_bytes = value_bytes
    run(world, one, 0, {LEFT: 9}, Rows((*LEFT, 4)))
    assert world.looked_at == [], "a small batch says nothing, and goes unseen"
    run(world, one, 1, {LEFT: 29}, Rows(*((*LEFT, at) for at in range(9, 29))))
    assert world.looked_at == [9, 19]
    run(world, one, 2, {LEFT: 49}, Rows(*((*LEFT, at) for at in range(29, 49))))
    run(world, one, 3, {LEFT: 70}, Rows((*LEFT, 60)))
    assert ended(one) is None
    assert world.looked_at == [9, 19]
    assert [by for by in world.staged_by if by != "emptied"] == ["driver", where, "driver", "executors"]


def test_executors_fill_other_tables_than_those_that_are_being_merged(world: World, make: Make) -> None:
    """And these are emptied by another connection: the sink's own is in the middle of a transaction."""
    one = make(driver_offsets=4)
    world.go.clear()
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    assert world.landing.wait(ANSWER_S)
    spark = threading.Thread(target=run, args=(world, one, 1, {LEFT: 50}, Rows((*LEFT, 9))), daemon=True)
    spark.start()
    eventually(lambda: world.staged_by == ["emptied", "executors"] * 2, ANSWER_S, "both are staged")
    world.go.set()
    spark.join(ANSWER_S)
    (first, side), (second, other) = world.emptied
    assert first is world.reader is second
    assert {side, other} == {0, 1}
    assert ended(one) is None
