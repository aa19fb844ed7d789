"""A batch whose lines are too many for one transaction: it lands in parts, with the ends of the sink made up."""

import threading
from collections.abc import Callable, Mapping

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.spark_sink.contracts import Target
from onefold.spark_sink.errors import Overlap, Rewind
from onefold.spark_sink.landing import batches
from onefold.spark_sink.landing.batches import Batches
from onefold.spark_sink.landing.isolate import Bound
from onefold.spark_sink.landing.ledger import LedgerPosition
from onefold.telemetry import BATCHES, OFFSETS
from tests.support.frames import ANSWER_S, BYTES, LEFT, RIGHT, TOPIC, Rows, World, ended, run
from tests.support.waiting import eventually

Make = Callable[..., Batches]


def spans(world: World) -> list[list[tuple[int, int, int]]]:
    """The partition, the start and the end of each range, for each try to land."""
    return [[(one.partition, one.start, one.end) for one in ranges] for ranges, _ in world.tried]


def test_a_batch_lands_in_parts_with_the_offsets_of_each(world: World, make: Make) -> None:
    """Each record is in one part. Offsets without a record are in one as well."""
    one, rows = make(line_bytes_max=2 * BYTES), Rows(*((*LEFT, at) for at in range(4)), (*RIGHT, 7))
    run(world, one, 0, {LEFT: 4, RIGHT: 9}, rows)
    assert ended(one) is None
    assert spans(world) == [[(0, 0, 2), (1, 0, 5)], [(0, 2, 3), (1, 5, 7)], [(0, 3, 4), (1, 7, 9)]]
    assert world.staged == [[(*LEFT, 0), (*LEFT, 1)], [(*LEFT, 2)], [(*LEFT, 3), (*RIGHT, 7)]]
    assert (one.reached, one.landed) == ({LEFT: 4, RIGHT: 9}, 13)
    assert (world.told.counted[BATCHES], world.told.counted[OFFSETS]) == (3, 13)
    assert (rows.reread, rows.kept) == (True, 0)


def test_a_record_that_is_too_large_lands_alone(world: World, make: Make) -> None:
    one = make(line_bytes_max=BYTES - 1)
    run(world, one, 0, {LEFT: 3}, Rows(*((*LEFT, at) for at in range(3))))
    assert ended(one) is None
    assert spans(world) == [[(0, 0, 1)], [(0, 1, 2)], [(0, 2, 3)]]


def test_a_batch_of_which_enough_is_known_is_not_measured(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line may have 5 bytes an offset, until a batch that may have too many of them tells how many they are."""
    monkeypatch.setattr(batches, "_RECORD_BYTES", 5)
    one, at = make(line_bytes_max=8 * BYTES), 0
    for number, (offsets, records, measured) in enumerate(
        [(16, 8, False), (17, 8, True), (17, 17, False), (8, 1, False), (9, 8, True)]
    ):
        rows = Rows(*((*LEFT, offset) for offset in range(at, at + records)))
        at += offsets
        run(world, one, number, {LEFT: at}, rows)
        assert rows.reread is measured, number
    assert ended(one) is None
    assert len(world.tried) == 5


def test_the_largest_part_tells_what_the_next_batch_may_have(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one may hold no record at all, as where a transaction was aborted."""
    monkeypatch.setattr(batches, "_RECORD_BYTES", 5)
    one = make(line_bytes_max=2 * BYTES)
    run(world, one, 0, {LEFT: 16}, Rows(*((*LEFT, at) for at in range(8))))
    rows = Rows(*((*LEFT, at) for at in range(16, 26)))
    run(world, one, 1, {LEFT: 26}, rows)
    assert ended(one) is None
    assert rows.reread
    assert max(map(len, world.staged)) == 2


def test_rows_of_a_broken_batch_do_not_count_when_another_sink_has_landed_the_rest(world: World, make: Make) -> None:
    """The next batch would be refused for rows that are not its own."""
    one = make(line_bytes_max=BYTES)
    world.outcomes = [None, Rewind(Code.POSITIONS_MOVED, "no")]
    with pytest.raises(RuntimeError):
        run(world, one, 0, {LEFT: 4}, Rows(*((*LEFT, at) for at in range(4))))
    assert world.bound.rows == {TOPIC: 1}
    again = make(start={LEFT: 1, RIGHT: 0})
    world.stored = {LEFT: LedgerPosition(4, "id-1", None), RIGHT: LedgerPosition(0, "id-1", None)}
    run(world, again, 0, {LEFT: 4}, Rows(*((*LEFT, at) for at in range(1, 4))))
    assert ended(again) is None
    assert world.bound.rows == {}


def test_a_part_lands_while_the_next_one_is_read(world: World, make: Make) -> None:
    """And no third one is in memory."""
    one = make(line_bytes_max=BYTES)
    world.go.clear()
    rows = Rows(*((*LEFT, at) for at in range(3)))
    spark = threading.Thread(target=run, args=(world, one, 0, {LEFT: 3}, rows), daemon=True)
    spark.start()
    assert world.landing.wait(ANSWER_S)
    eventually(lambda: len(world.staged) == 2, ANSWER_S, "the second is read")
    spark.join(0.1)
    assert (len(world.staged), world.tried) == (2, [])
    world.go.set()
    spark.join(ANSWER_S)
    assert ended(one) is None
    assert len(world.tried) == 3


def test_no_part_lands_behind_one_that_failed(world: World, make: Make) -> None:
    """What has landed before it counts, and the next start goes on there."""
    one, rows = make(line_bytes_max=BYTES), Rows(*((*LEFT, at) for at in range(4)))
    lost = Rewind(Code.POSITIONS_MOVED, "no")
    world.outcomes = [None, lost]
    with pytest.raises(RuntimeError, match="was not written"):
        run(world, one, 0, {LEFT: 4}, rows)
    assert ended(one) is lost
    assert spans(world) == [[(0, 0, 1)], [(0, 1, 2)]]
    assert (one.reached[LEFT], one.landed, rows.kept) == (1, 1, 0)
    assert world.bound.rows == {TOPIC: 1}, "of a batch that has not ended"


def test_rows_of_all_parts_of_a_batch_count_together(world: World, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of parts that PostgreSQL takes as they are, too. The next batch begins anew."""
    one, counted = make(line_bytes_max=2 * BYTES), list[tuple[int, int]]()
    each_time(world, monkeypatch, lambda bound: counted.append((bound.rows[TOPIC], bound.refused[TOPIC])))
    world.outcomes = [None, psycopg.errors.CheckViolation("of the second part")]
    run(world, one, 0, {LEFT: 6}, Rows(*((*LEFT, at) for at in range(6))))
    run(world, one, 1, {LEFT: 7}, Rows((*LEFT, 6)))
    assert ended(one) is None
    assert spans(world)[:-1] == [[(0, 0, 1)], [(0, 1, 3)], [(0, 1, 3)], [(0, 3, 4)], [(0, 4, 6)]]
    # Of the sifted part there are five, of which one is refused.
    assert counted == [(1, 0), (6, 1), (7, 1), (9, 1), (1, 0)]


def test_of_a_reduction_the_offsets_of_its_topic_count(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many records there are, nobody has counted where PostgreSQL takes them."""
    world.targets["made_up.sums"] = Target("made_up.sums", (), (), reduced=True, reads=TOPIC)
    world.targets["made_up.other"] = Target("made_up.other", (), (), reduced=True, reads="made_up.none")
    one, counted = make(), list[dict[str, int]]()
    each_time(world, monkeypatch, lambda bound: counted.append(dict(bound.rows)))
    run(world, one, 0, {LEFT: 5, RIGHT: 2}, Rows((*LEFT, 1), (*LEFT, 4)))
    assert ended(one) is None
    assert counted == [{TOPIC: 2, "made_up.sums": 7}], "of another topic there was no record"
    assert world.bound.rows == {}


def test_offsets_without_records_do_not_end_a_run_of_refused_sums(world: World, make: Make) -> None:
    """As those of aborted transactions: a wrong table stops the sink, however its batches fall."""
    world.targets["made_up.sums"] = Target("made_up.sums", (), (), reduced=True, reads=TOPIC)
    world.bound.runs["made_up.sums"] = 50
    one = make()
    run(world, one, 0, {LEFT: 5}, Rows())
    assert world.bound.runs["made_up.sums"] == 50
    run(world, one, 1, {LEFT: 7}, Rows((*LEFT, 6)))
    assert ended(one) is None
    assert world.bound.runs["made_up.sums"] == 0


def each_time(world: World, monkeypatch: pytest.MonkeyPatch, look: Callable[[Bound], None]) -> None:
    """Look at the rows that count, after each part."""
    original = world.bound.landed

    def landed(rows: Mapping[str, int], refused: Mapping[str, int]) -> None:
        original(rows, refused)
        look(world.bound)

    monkeypatch.setattr(world.bound, "landed", landed)


def test_of_a_part_that_a_concurrent_sink_has_landed_in_part_the_rest_is_reduced_again(
    world: World, make: Make
) -> None:
    world.outcomes = [Overlap({LEFT: 1})]
    one = make(line_bytes_max=2 * BYTES)
    run(world, one, 0, {LEFT: 4}, Rows(*((*LEFT, at) for at in range(4))))
    assert ended(one) is None
    assert spans(world) == [[(0, 0, 2)], [(0, 1, 2)], [(0, 2, 4)]]
