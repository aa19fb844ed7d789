"""In which order the rows of a refused batch are tried."""

import pyarrow as pa

from onefold.spark_sink.landing.isolate import in_order


def part(*rows: tuple[int, int, int]) -> pa.Table:
    """(partition, offset, milliseconds)"""
    columns = zip(*[("log", *row) for row in rows], strict=True)
    return pa.table(dict(zip(("topic", "partition", "offset", "at_ms"), map(list, columns), strict=True)))


def test_in_a_partition_rows_of_all_tables_are_in_the_order_of_their_offsets() -> None:
    """Whatever the clocks of two replicas say that write to it."""
    found = in_order(
        {"shop.customers": part((0, 1, 1_000), (0, 4, 1_010)), "shop.orders": part((0, 2, 950), (1, 7, 999))}
    )
    assert [row.origin[1:] for row in found] == [(1, 7), (0, 1), (0, 2), (0, 4)]
