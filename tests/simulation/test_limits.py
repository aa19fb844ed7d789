"""How large a transaction and its records may be, and how long a wait is, at the bounds."""

import pytest

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import TooMuch
from onefold.processor.core.values import Record
from onefold.processor.runtime.backoff import backoff_s
from onefold.processor.runtime.batch_limit import (
    BATCH,
    FIRST_RECORDS,
    TURN_S,
    WINDOW,
    BatchLimit,
    Quarantine,
    records_next,
)
from onefold.processor.runtime.record_limits import Sizes
from tests.support.coded import raises

EMPTY = Quarantine(clean=False)


@pytest.mark.parametrize("records", [8, 40, 4 * FIRST_RECORDS + 40])
def test_the_next_transaction_is_as_large_as_time_allows(records: int) -> None:
    """It shrinks at once, grows by a quarter near the bound, and doubles far from it."""
    grown = records + min(FIRST_RECORDS, records // 4)
    far = max(FIRST_RECORDS, 2 * records)
    assert records_next(records, 0) == far <= BATCH[0]
    assert records_next(records, 2 * TURN_S) == records // 2
    assert records_next(records, 1000 * records * TURN_S) == 1
    assert records_next(records, TURN_S) == grown
    assert records_next(records, TURN_S / 1.5) == grown
    assert records_next(records, TURN_S / 2) == 2 * records
    assert records_next(records, TURN_S / 1024) == min(1024 * records, far)


def test_after_records_that_were_too_large_together_the_size_doubles_behind_them() -> None:
    limit = BatchLimit(lambda quarantine: None)
    limit.too_large([Record("orders", 0, offset, None, None) for offset in range(40)], "too large")
    sizes = []
    for end in (39, 40, 44, 52):
        sizes.append(limit.records_max)
        limit.committed(sizes[-1], 0.1, {"orders": end})
    assert sizes == [4, 4, 8, 16]


def test_a_quarantine_gets_stricter_with_each_crash_up_to_one_record() -> None:
    assert Quarantine().successor() == EMPTY
    first = EMPTY.successor()
    assert (first.level, first.clean) == (1, False)
    second = first.successor()
    assert (second.level, second.successor().level) == (2, 2)
    assert second.relaxed() == first
    assert first.relaxed() == Quarantine()


def test_a_task_with_a_backlog_is_isolated_less_with_each_window_of_records() -> None:
    """Long before all records are processed that were there at its start."""
    limit = BatchLimit(lambda quarantine: None)
    limit.quarantine = Quarantine(2, clean=False)
    limit.open({"orders": PartitionIdentity("id", 0, 10**6)})
    end, levels = 0, []
    for records in (WINDOW[2] - 1, 1, WINDOW[1] - 1, 1):
        end += records
        limit.committed(records, 0.1, {"orders": end})
        limit.relax({"orders": end})
        levels.append(limit.quarantine.level)
    assert levels == [2, 1, 1, 0]


def test_a_quarantine_counts_the_tries_of_the_record_that_was_tried_last() -> None:
    once = Quarantine(1).trying(("orders", 7))
    twice = once.trying(("orders", 7))
    assert (once.level, once.clean, once.tries_of(("orders", 7)), twice.tries_of(("orders", 7))) == (2, False, 1, 2)
    assert (twice.tries_of(("orders", 8)), twice.tries_of(("payments", 7))) == (0, 0)
    assert twice.trying(("orders", 8)).tries_of(("orders", 8)) == 1


def test_a_wait_doubles_with_each_failure_up_to_the_longest() -> None:
    assert [backoff_s(0.5, 3.0, failures) for failures in (0, 1, 2, 3, 4, 10**6)] == [0.5, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_record_of_just_the_limit_fits_and_one_byte_more_does_not() -> None:
    """Each record and each header counts with some bytes more. The limits are asked for again before a record is refused."""
    write = ("orders.out", 0, b"key", b"value", [("trace", b"123"), ("empty", None)])
    size = (100 + len(b"keyvalue")) + (10 + len(b"trace123")) + (10 + len(b"empty"))
    Sizes(lambda: {"orders.out": size}).check(10**6, [write])
    with raises(TooMuch, Code.TOO_LARGE, "orders.out", f"{size - 1}", f"{size}"):
        Sizes(lambda: {"orders.out": size - 1}).check(10**6, [write])
    raised = iter([size - 1, size])
    Sizes(lambda: {"orders.out": next(raised)}).check(10**6, [write])
    Sizes(lambda: {"orders.out": 100}).check(10**6, [("orders.out", 0, None, None, None)])


def test_records_that_fit_together_are_not_measured_one_by_one() -> None:
    write = ("orders.out", 0, b"key", b"value", None)
    Sizes(lambda: {"orders.out": 107}).check(7, [write])
    with raises(TooMuch, Code.TOO_LARGE):
        Sizes(lambda: {"orders.out": 107}).check(8, [write])
