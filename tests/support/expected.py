"""What the judge's model makes of records."""

from collections.abc import Iterable

from onefold.verify.expect import Expected, Oracle, Workload
from onefold.verify.record import Record


def expect(workload: Workload, records: Iterable[Record], partitions: int) -> Expected:
    """What must exist after these records of the workload's topics, which have so many partitions."""
    oracle = Oracle(workload, partitions)
    for record in records:
        oracle.feed(record)
    return oracle.settled()
