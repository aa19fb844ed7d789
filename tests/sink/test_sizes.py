"""How large records are, about."""

from onefold.spark_sink.landing.ledger import OffsetRange
from onefold.spark_sink.landing.protocols import Record
from onefold.spark_sink.landing.sizes import mean_bytes


class Log:
    """Records as large as their offset; before offset 10 there are none."""

    def record_from(self, topic: str, partition: int, offset: int) -> Record | None:
        return Record(offset, None, bytes(offset), 0) if offset >= 10 else None


def test_the_first_record_and_the_one_in_the_middle_are_looked_at() -> None:
    assert mean_bytes(Log(), [OffsetRange("log", 0, 10, 30, "id"), OffsetRange("log", 1, 30, 50, "id")]) == 25
    assert mean_bytes(Log(), [OffsetRange("log", 0, 0, 3, "id")]) == 0
    assert mean_bytes(Log(), []) == 0
