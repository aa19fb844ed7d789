"""What happens to a batch, with the ends of the sink made up: no Spark, no Kafka, no Postgres."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.spark_sink.errors import Overlap, Rewind
from onefold.spark_sink.landing.batch_history import PRUNED_AFTER
from onefold.spark_sink.landing.batches import AHEAD_OFFSETS, Batches
from onefold.spark_sink.landing.ledger import LastRecord, LedgerPosition, OffsetRange, Partition
from onefold.telemetry import BATCHES, OFFSETS, RETRIES, ROWS, SET_ASIDE, STAGE_S
from tests.support.frames import ANSWER_S, LEFT, RIGHT, TOPIC, Rows, World, ended, run

Make = Callable[..., Batches]


def offset_range(key: Partition, start: int, end: int, last: int | None = None) -> OffsetRange:
    return OffsetRange(*key, start, end, "id-1", None if last is None else LastRecord(last, last))


def test_a_batch_goes_on_where_the_one_before_ended(world: World, make: Make) -> None:
    one = make(start={LEFT: 3, RIGHT: 5})
    run(world, one, 0, {LEFT: 7, RIGHT: 5}, Rows((*LEFT, 3), (*LEFT, 6)))
    run(world, one, 1, {LEFT: 9, RIGHT: 6}, Rows((*RIGHT, 5)))
    one.close()
    assert [ranges for ranges, _ in world.tried] == [
        (offset_range(LEFT, 3, 7, 6),),
        (offset_range(LEFT, 7, 9), offset_range(RIGHT, 5, 6, 5)),
    ]
    assert one.reached == {LEFT: 9, RIGHT: 6}
    assert one.landed == 7
    assert world.told.counted == {BATCHES: 2, OFFSETS: 7, ROWS: 6, STAGE_S: 0}
    assert world.told.durations == [0, 0]


def test_what_was_noted_of_batches_is_pruned_now_and_then(world: World, make: Make) -> None:
    """After the first batch of a start, or sinks that are often killed would never do it; and then after so many rows."""
    one, places = make(), [(LEFT[0], partition) for partition in range(PRUNED_AFTER // 2)]
    for number in range(5):
        run(world, one, number, dict.fromkeys(places, number + 1), Rows((*LEFT, number)))
    one.close()
    assert world.pruned == [1, 3, 5]


def test_a_checkpoint_that_goes_back_ends_the_query(world: World, make: Make) -> None:
    one = make(start={LEFT: 3, RIGHT: 5})
    with pytest.raises(RuntimeError, match="was not written"):
        run(world, one, 0, {LEFT: 2, RIGHT: 9}, Rows())
    assert isinstance(one.failure, Rewind)
    assert "goes back" in str(one.failure)
    assert world.tried == []
    assert one.reached == {LEFT: 3, RIGHT: 5}


def test_what_a_concurrent_sink_has_landed_is_neither_read_nor_landed(world: World, make: Make) -> None:
    one = make()
    world.stored = {LEFT: LedgerPosition(5, "id-1", None), RIGHT: LedgerPosition(5, "id-1", None)}
    run(world, one, 0, {LEFT: 5, RIGHT: 4}, Rows())
    one.close()
    assert (world.staged, world.tried) == ([], [])
    assert (one.reached, one.landed) == ({LEFT: 5, RIGHT: 4}, 9)


@pytest.mark.parametrize(
    "stored", [{}, {LEFT: 5}, {LEFT: 5, RIGHT: 3}, {LEFT: 4, RIGHT: 4}], ids=["nothing", "half", "less", "the other"]
)
def test_what_a_concurrent_sink_has_landed_in_part_is_landed(
    world: World, make: Make, stored: dict[Partition, int]
) -> None:
    one = make()
    world.stored = {key: LedgerPosition(offset, "id-1", None) for key, offset in stored.items()}
    run(world, one, 0, {LEFT: 5, RIGHT: 4}, Rows((*LEFT, 4)))
    one.close()
    assert [ranges for ranges, _ in world.tried] == [(offset_range(LEFT, 0, 5, 4), offset_range(RIGHT, 0, 4))]


def test_topics_are_asked_who_they_are_before_anything_is_landed(world: World, make: Make) -> None:
    one = make()
    world.ids = {TOPIC: "id-2"}
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    one.close()
    assert isinstance(one.failure, Refused)
    assert world.tried == []
    assert (one.reached, one.landed) == ({LEFT: 0, RIGHT: 0}, 0)


@pytest.mark.parametrize(
    "records",
    [[(*LEFT, 2)], [(*LEFT, 5)], [(*RIGHT, 0)], [(*LEFT, 4), ("made_up.other", 0, 4)]],
    ids=["below", "at the end", "of no partition of it", "of another topic"],
)
def test_rows_outside_of_the_batch_are_never_landed(
    world: World, make: Make, records: list[tuple[str, int, int]]
) -> None:
    one = make(start={LEFT: 3, RIGHT: 0})
    run(world, one, 0, {LEFT: 5}, Rows(*records))
    one.close()
    assert isinstance(one.failure, Rewind)
    assert "outside of the offsets" in str(one.failure)
    assert world.tried == []


ALL = [(*LEFT, 1), (*LEFT, 4), (*RIGHT, 2), (*RIGHT, 3)]


def test_of_a_reduced_batch_only_what_is_left_is_reduced_again(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent sink is a part ahead, twice."""
    world.outcomes = [Overlap({LEFT: 2, RIGHT: 0}), Overlap({LEFT: 2, RIGHT: 3})]
    one, rows = make(), Rows(*ALL)
    run(world, one, 0, {LEFT: 5, RIGHT: 4}, rows)
    assert ended(one) is None
    assert [(ranges, staged.records) for ranges, staged in world.tried] == [
        ((offset_range(LEFT, 0, 5, 4), offset_range(RIGHT, 0, 4, 3)), ALL),
        ((offset_range(LEFT, 2, 5, 4), offset_range(RIGHT, 0, 4, 3)), [(*LEFT, 4), (*RIGHT, 2), (*RIGHT, 3)]),
        ((offset_range(LEFT, 2, 5, 4), offset_range(RIGHT, 3, 4, 3)), [(*LEFT, 4), (*RIGHT, 3)]),
    ]
    assert one.landed == 9


def test_a_partition_that_a_concurrent_sink_has_landed_is_left_out(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.outcomes = [Overlap({LEFT: 5, RIGHT: 0}), Overlap({RIGHT: 4})]
    one = make()
    run(world, one, 0, {LEFT: 5, RIGHT: 4}, Rows(*ALL))
    assert ended(one) is None
    assert [ranges for ranges, _ in world.tried][1:] == [(offset_range(RIGHT, 0, 4, 3),)]
    assert one.reached == {LEFT: 5, RIGHT: 4}


@pytest.mark.parametrize(
    "error",
    [psycopg.errors.DeadlockDetected("deadlock"), psycopg.errors.LockNotAvailable("lock"), RuntimeError("ROLLBACK")],
)
def test_a_transaction_that_failed_by_itself_is_entered_once_more(world: World, make: Make, error: Exception) -> None:
    one = make()
    world.outcomes = [error]
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    assert ended(one) is None
    first, second = world.tried
    assert first == second
    assert world.told.counted == {RETRIES: 1, BATCHES: 1, OFFSETS: 5, ROWS: 3, STAGE_S: 0}
    assert len(world.staged) == 1, "what is staged is still there"


def test_a_transaction_that_fails_twice_ends_the_query(world: World, make: Make) -> None:
    one = make()
    world.outcomes = [psycopg.errors.DeadlockDetected("one"), psycopg.errors.DeadlockDetected("two")]
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    one.close()
    assert str(one.failure) == "two"
    assert len(world.tried) == 2
    assert world.set_aside == []


def test_nothing_is_tried_again_on_a_connection_that_is_gone(world: World, make: Make) -> None:
    """Nobody knows whether the first try has landed: the next start asks."""
    one = make()
    world.connection.closed = True
    world.outcomes = [psycopg.OperationalError("lost")]
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    one.close()
    assert str(one.failure) == "lost"
    assert len(world.tried) == 1


@pytest.mark.parametrize("error", [Rewind(Code.POSITIONS_MOVED, "no"), Refused(Code.TOPIC_RECREATED, "no")])
def test_what_the_sink_says_itself_is_not_tried_again(world: World, make: Make, error: Exception) -> None:
    one = make()
    world.outcomes = [error]
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    one.close()
    assert one.failure is error
    assert len(world.tried) == 1


def test_a_row_that_postgres_refuses_is_set_aside_and_the_others_land(world: World, make: Make) -> None:
    """Not tried again as it is: the same row fails for ever."""
    one, rows = make(), Rows((*LEFT, 4))
    world.outcomes = [psycopg.errors.CheckViolation("row")]
    run(world, one, 0, {LEFT: 5}, rows)
    assert ended(one) is None
    (first, _), second = world.tried
    assert (second[0], second[1].reason) == (first, "because")
    assert [arguments[0] for arguments in world.set_aside] == ["made_up"]
    assert world.set_aside[0][2].records == rows.records
    assert world.told.counted[SET_ASIDE] == 1
    assert world.told.counted[ROWS] == 3 + 2


def test_a_small_batch_is_landed_while_spark_goes_on(world: World, make: Make) -> None:
    one = make()
    world.go.clear()
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    assert world.landing.wait(ANSWER_S)
    assert (world.tried, one.reached[LEFT], one.landed) == ([], 0, 0), "not yet"


def test_a_batch_as_large_as_may_be_is_landed_while_spark_goes_on(world: World, make: Make) -> None:
    """Spark rounds down in each partition: two fewer is all that two of them give."""
    one = make(max_offsets=2 * AHEAD_OFFSETS + 2)
    world.go.clear()
    run(world, one, 0, {LEFT: AHEAD_OFFSETS, RIGHT: AHEAD_OFFSETS}, Rows((*LEFT, 4)))
    assert world.landing.wait(ANSWER_S)
    assert (world.tried, one.reached[LEFT]) == ([], 0), "not yet"


def test_spark_waits_for_a_large_batch(world: World, make: Make) -> None:
    one, ends = make(max_offsets=10 * AHEAD_OFFSETS), {LEFT: AHEAD_OFFSETS + 1}
    world.go.clear()
    spark = threading.Thread(target=run, args=(world, one, 0, ends, Rows((*LEFT, 4))), daemon=True)
    spark.start()
    assert world.landing.wait(ANSWER_S)
    spark.join(0.1)
    assert spark.is_alive()
    world.go.set()
    spark.join(ANSWER_S)
    assert one.reached == ends | {RIGHT: 0}


@pytest.mark.parametrize("outcome", [None, RuntimeError("one"), Rewind(Code.POSITIONS_MOVED, "no")], ids=str)
def test_what_was_kept_of_a_batch_is_let_go(world: World, make: Make, outcome: Exception | None) -> None:
    """Whether it lands or not; and not before."""
    one, rows = make(), Rows((*LEFT, 4))
    world.outcomes = [outcome] * 2 if outcome else []
    world.go.clear()
    run(world, one, 0, {LEFT: 5}, rows)
    assert world.landing.wait(ANSWER_S)
    assert rows.kept == 1
    world.go.set()
    assert ended(one) is outcome
    assert rows.kept == 0


def test_a_batch_that_cannot_be_staged_lets_the_one_before_land_and_none_after(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        world.go.set()
        raise ValueError("no Kafka")

    one = make()
    world.go.clear()
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    assert world.landing.wait(ANSWER_S)
    second = Rows((*LEFT, 7))
    monkeypatch.setattr(second, "to_arrow", fail)
    world.offsets(1, {LEFT: 9})
    with pytest.raises(RuntimeError, match="was not written"):
        one.on_batch(second, 1)
    assert str(one.failure) == "no Kafka"
    assert (one.reached[LEFT], len(world.tried), second.kept) == (5, 1, 0)


def test_a_batch_that_is_staged_behind_one_that_fails_is_let_go(world: World, make: Make) -> None:
    """It will not land: what was kept for it goes, too."""
    one, second = make(), Rows((*LEFT, 7))
    world.outcomes = [Rewind(Code.POSITIONS_MOVED, "no")]
    world.go.clear()
    run(world, one, 0, {LEFT: 5}, Rows((*LEFT, 4)))
    assert world.landing.wait(ANSWER_S)
    spark = threading.Thread(target=_expecting_failure, args=(world, one, second), daemon=True)
    spark.start()
    spark.join(0.1)
    assert second.kept == 1
    world.go.set()
    spark.join(ANSWER_S)
    assert (second.kept, len(world.tried)) == (0, 1)
    assert str(ended(one)) == "no"


def _expecting_failure(world: World, one: Batches, rows: Rows) -> None:
    with pytest.raises(RuntimeError, match="was not written"):
        run(world, one, 1, {LEFT: 9}, rows)
