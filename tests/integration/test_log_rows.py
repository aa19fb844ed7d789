"""What is made of a batch of a decision log, by a real Spark."""

from typing import Any, cast

import pytest

from onefold.spark_sink.decisions import Decisions
from onefold.spark_sink.kafka.log_reader import LogReader
from onefold.spark_sink.landing.ledger import OffsetRange
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.spark.decided import LogRows

RECORD = ("cast(NULL AS binary) key", "cast(id AS string) value", "'a.decisions' topic", "cast(id % 2 AS int) partition",
          "id offset", "timestamp_seconds(0) timestamp")  # fmt: skip


def decided(partition: int, *offsets: int) -> OffsetRange:
    decisions = Decisions(0, 30, offsets, (), 0, None, ({},) * len(offsets))
    return OffsetRange("a.decisions", partition, 0, 30, "id", decisions=decisions)


@pytest.fixture
def rows(spark: Any, plan: Plan) -> LogRows:
    frame = spark.range(30).selectExpr(*RECORD)
    return LogRows(plan, frame, lambda it: it.select("partition", "offset"), 1, log=cast("LogReader", None))


def test_only_what_came_true_has_rows(rows: LogRows) -> None:
    found = rows.decided([decided(0, 2, 4), decided(1, 5, 4)]).to_arrow().to_pylist()
    assert [(row["partition"], row["offset"]) for row in found] == [(0, 2), (0, 4), (1, 5)]
    assert rows.decided([decided(0)]).to_arrow().num_rows == 0


def test_code_is_compiled_once_and_not_for_each_batch(spark: Any, rows: LogRows) -> None:
    """However few offsets there are, and of whichever partitions: in the code they would make it another one each time."""

    def compiled() -> int:
        return int(spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount())

    for number in range(3):
        before = compiled()
        assert rows.decided([decided(number % 2, 10 + number)]).to_arrow().num_rows == 1
        assert number == 0 or compiled() == before
