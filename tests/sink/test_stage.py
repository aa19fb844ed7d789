"""Lines on their way to COPY, and what tasks report of them. Without Spark and Postgres."""

from typing import Any, cast

import pyarrow as pa
import pytest

from onefold.error_codes import Code
from onefold.spark_sink.contracts import Target
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.landing import stage
from onefold.spark_sink.landing.batches import remaining
from onefold.spark_sink.landing.ledger import Batch, Contents, LastRecord, OffsetRange, advance, overlaps
from onefold.spark_sink.landing.stage import DriverStaged, ExecutorStaged, Stage
from onefold.spark_sink.postgres.connection import Connection
from tests.support.coded import raises

NAMES = ("target", "topic", "partition", "offset", "fingerprint", "at_ms", "line")
SCHEMA = pa.schema(
    list(zip(NAMES, [pa.string(), pa.string(), pa.int32(), *[pa.int64()] * 3, pa.string()], strict=True))
)
REPORT = ("attempt", "target", "topic", "partition", "rows", "bytes", "last_offset", "fingerprint", "oldest_ms")
STAGE = Stage({name: Target(name, (), ()) for name in ("a", "b")}, 1)


def table(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in rows], schema=SCHEMA)


def test_the_last_record_of_a_partition_is_the_greatest_of_all_targets() -> None:
    """Lines, marks without a target, and rows that stand for a batch as a whole, in any order."""
    staged = DriverStaged(
        STAGE,
        table(
            ("b", "t", 0, 7, 70, 700, "x\n"),
            ("a", "t", 0, 3, 30, 300, "x\n"),
            ("a", "t", 0, 5, 50, 200, "x\n"),
            (None, "t", 1, 9, 90, 100, None),
            ("a", "t", 1, 2, 20, 900, "x\n"),
            ("b", None, None, None, None, None, "x\n"),
        ),
    )
    # What stands for records that were added up before is not their number; when the oldest is, it says.
    assert staged.contents == {("t", 0): Contents(3, 200), ("t", 1): Contents(None, 100)}
    assert staged.last_records == {("t", 0): LastRecord(7, 70), ("t", 1): LastRecord(9, 90)}
    assert staged.targets == ["a", "b"]
    assert staged.bytes >= 10


@pytest.mark.parametrize("chunk", [slice(0, 3), slice(1, 2), slice(1, 3), slice(2, 2)])
def test_the_bytes_of_a_part_of_an_array_are_those_of_its_strings(chunk: slice) -> None:
    strings = ["one\n", "zwölf\n", "three\n"]
    array = pa.array(strings)[chunk]
    assert bytes(stage.bytes_of(array)).decode() == "".join(strings[chunk])


class Counts:
    """Answers every count, and notes the statements."""

    def __init__(self, *counts: int | None) -> None:
        self._counts = list(counts)
        self.asked: list[str] = []

    def execute(self, statement: Any) -> Any:
        self.asked.append(statement.as_string(None))
        return self

    def fetchone(self) -> tuple[int] | None:
        count = self._counts.pop(0)
        return None if count is None else (count,)

    def connection(self) -> Connection:
        return cast("Connection", self)


def reports(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(REPORT, row, strict=True)) for row in rows], schema=stage.report_schema())


def executor_staged() -> ExecutorStaged:
    return ExecutorStaged(
        STAGE,
        reports(
            ("12", "a", "t", 0, 3, 300, 5, 50, 7),
            ("9", "a", "t", 1, 4, 400, 8, 80, 9),
            ("9", "b", "t", 1, 1, 10, 9, 90, 8),
            ("9", None, "t", 2, 6, 0, 4, 40, None),
        ),
    )


def test_of_executor_staging_the_reported_rows_are_added_up_by_target() -> None:
    staged, counts = executor_staged(), Counts(7, 1)
    staged.fill(counts.connection())
    assert staged.targets == ["a", "b"]
    assert staged.last_records == {
        ("t", 0): LastRecord(5, 50),
        ("t", 1): LastRecord(9, 90),
        ("t", 2): LastRecord(4, 40),
    }
    assert staged.contents == {
        ("t", 0): Contents(3, 7),
        ("t", 1): Contents(5, 8),
        ("t", 2): Contents(None, None),
    }
    assert staged.bytes == 710
    assert len(counts.asked) == 2
    assert all("WHERE attempt = ANY ('{9,12}'::xid8[])" in asked for asked in counts.asked)


@pytest.mark.parametrize("counts", [(6, 1), (8, 1), (0, 1), (7, 0), (7, None)], ids=str)
def test_staged_rows_that_are_not_all_there_are_never_merged(counts: tuple[int | None, ...]) -> None:
    """Postgres empties UNLOGGED tables when it crashes, and says nothing about it."""
    with raises(Rewind, Code.POSITIONS_MOVED):
        executor_staged().fill(Counts(*counts).connection())


def test_before_executor_staging_every_staging_table_is_emptied() -> None:
    counts = Counts()
    stage.empty_unlogged(counts.connection(), STAGE)
    assert counts.asked == ['TRUNCATE "onefold_stage"."s1_0"', 'TRUNCATE "onefold_stage"."s1_1"']


def batch(*ranges: tuple[int, int, int]) -> Batch:
    return Batch(
        "s",
        "w",
        tuple(
            OffsetRange("t", partition, start, end, "id", LastRecord(9, 9), contents=Contents(1, 1))
            for partition, start, end in ranges
        ),
    )


@pytest.mark.parametrize(
    ("start_offsets", "overlapping", "left"),
    [
        ({("t", 0): 2, ("t", 1): 4}, False, [(0, 2, 5), (1, 4, 8)]),
        ({("t", 0): 1, ("t", 1): 0}, False, [(0, 2, 5), (1, 4, 8)]),
        ({("t", 0): 2, ("t", 1): 5}, True, [(0, 2, 5), (1, 5, 8)]),
        ({("t", 0): 5, ("t", 1): 4}, True, [(1, 4, 8)]),
        ({("t", 0): 6, ("t", 1): 9}, True, []),
    ],
    ids=["nothing landed", "less than nothing", "a part", "a partition", "all and more"],
)
def test_what_is_left_of_a_batch(
    start_offsets: dict[tuple[str, int], int], overlapping: bool, left: list[tuple[int, int, int]]
) -> None:
    """What it said about its last records does not hold for the rest."""
    whole = batch((0, 2, 5), (1, 4, 8))
    assert overlaps(whole, start_offsets) is overlapping
    found = remaining(whole, start_offsets)
    assert [(part.partition, part.start, part.end) for part in found.ranges] == left
    assert all(part.last_record is None and part.contents is None and part.topic_id == "id" for part in found.ranges)


class Ledger:
    """Holds 5 for every partition of `batch`, under lock, and moves fewer of them than it is asked to."""

    def __init__(self, moved: int) -> None:
        self.rowcount = moved

    def connection(self) -> Connection:
        return cast("Connection", self)

    def execute(self, statement: str, values: Any) -> Any:
        return self

    def fetchall(self) -> list[tuple[str, int, int, str]]:
        return [("t", 0, 5, "id"), ("t", 1, 5, "id")]


@pytest.mark.parametrize(("moved", "ranges"), [(1, 2), (0, 1), (2, 1)])
def test_positions_that_do_not_all_move_fail_the_transaction(moved: int, ranges: int) -> None:
    """Under the lock that cannot be. The swap says so itself, and does not rest on it."""
    whole = batch(*[(0, 5, 9), (1, 5, 9)][:ranges])
    with raises(Rewind, Code.POSITIONS_MOVED, str(moved), str(ranges)):
        advance(Ledger(moved).connection(), whole)
    assert advance(Ledger(ranges).connection(), whole) == {part.key: 5 for part in whole.ranges}
