"""Lines on their way to COPY, and what is known of them. Without Spark and Postgres."""

from typing import Any, cast

import pyarrow as pa
import pytest

from onefold.error_codes import Code
from onefold.spark_sink.contracts import Target
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.landing import staging_tables
from onefold.spark_sink.landing.batches import remaining
from onefold.spark_sink.landing.ledger import BatchRange, Contents, LastRecord, OffsetRange, advance, overlaps
from onefold.spark_sink.landing.staging_tables import Staged, StagingTables
from onefold.spark_sink.postgres.connection import Connection
from tests.support.coded import raises

NAMES = ("target", "topic", "partition", "offset", "fingerprint", "at_ms", "line")
SCHEMA = pa.schema(
    list(zip(NAMES, [pa.string(), pa.string(), pa.int32(), *[pa.int64()] * 3, pa.string()], strict=True))
)
STAGE = StagingTables({name: Target(name, (), ()) for name in ("a", "b")})


def table(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in rows], schema=SCHEMA)


def test_the_last_record_of_a_partition_is_the_greatest_of_all_targets() -> None:
    """Lines, marks without a target, and rows that stand for a batch as a whole, in any order."""
    staged = Staged(
        STAGE,
        table(
            ("b", None, None, None, None, None, "x\n"),
            ("b", "t", 0, 7, 70, 700, "x\n"),
            ("a", "t", 0, 3, 30, 300, "x\n"),
            ("a", "t", 0, 5, 50, 200, "x\n"),
            (None, "t", 1, 9, 90, 100, None),
            ("a", "t", 1, 2, 20, 900, "x\n"),
        ),
    )
    # What stands for records that were added up before is not their number; when the oldest is, it says.
    assert staged.contents == {("t", 0): Contents(3, 200), ("t", 1): Contents(None, 100)}
    assert staged.last_records == {("t", 0): LastRecord(7, 70), ("t", 1): LastRecord(9, 90)}
    assert (staged.targets, staged.counts) == (["a", "b"], {"a": 3, "b": 2})
    assert staged.bytes >= 10


@pytest.mark.parametrize("chunk", [slice(0, 3), slice(1, 2), slice(1, 3), slice(2, 2)])
def test_the_bytes_of_a_part_of_an_array_are_those_of_its_strings(chunk: slice) -> None:
    strings = ["one\n", "zwölf\n", "three\n"]
    array = pa.array(strings)[chunk]
    assert bytes(staging_tables.bytes_of(array)).decode() == "".join(strings[chunk])


def batch(*ranges: tuple[int, int, int]) -> BatchRange:
    return BatchRange(
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


def test_the_halves_of_a_batch_have_its_offsets_once_and_no_empty_range() -> None:
    """Of partitions with one offset every other is in the first half, so no half is the whole."""
    first, second = batch((0, 2, 7), (1, 4, 5), (2, 4, 5), (3, 0, 2)).halves()
    assert [(part.partition, part.start, part.end) for part in first.ranges] == [(0, 2, 4), (1, 4, 5), (3, 0, 1)]
    assert [(part.partition, part.start, part.end) for part in second.ranges] == [(0, 4, 7), (2, 4, 5), (3, 1, 2)]


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
