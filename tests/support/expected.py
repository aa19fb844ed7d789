"""Expected tables by the verification model."""

from collections.abc import Iterable

from onefold.verify.expect import Expected, Oracle, Workload
from onefold.verify.record import ReadRecord


def expect(workload: Workload, records: Iterable[ReadRecord], partitions: int) -> Expected:
    """Compute the expected tables after these records of the model's topics, which have `partitions` partitions."""
    oracle = Oracle(workload, partitions)
    for record in records:
        oracle.feed(record)
    return oracle.settled()
