"""What the judge's model makes of records."""

from collections.abc import Iterable

from onefold.verify.expect import Expected, Oracle, Workload
from onefold.verify.record import ReadRecord


def expect(workload: Workload, records: Iterable[ReadRecord], partitions: int) -> Expected:
    """What must exist after these records of the workload's topics, which have so many partitions."""
    oracle = Oracle(workload, partitions)
    for record in records:
        oracle.feed(record)
    return oracle.settled()
