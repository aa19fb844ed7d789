"""What is made of a batch of a decision log, by a real Spark."""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body
from onefold.processor.core.values import Counts
from onefold.processor.io.proposals import AvroProposals
from onefold.spark_sink.decisions import Decisions, seen, summary
from onefold.spark_sink.landing.ledger import OffsetRange
from onefold.spark_sink.landing.protocols import Record
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.spark.decided import LogRows
from onefold.spark_sink.spark.rows import map_in_arrow

PROPOSALS = AvroProposals()

RECORD = ("cast(NULL AS binary) key", "cast(id AS string) value", "'a.decisions' topic", "cast(id % 2 AS int) partition",
          "id offset", "timestamp_seconds(0) timestamp")  # fmt: skip


def decided(partition: int, *offsets: int) -> OffsetRange:
    decisions = Decisions(0, 30, offsets, (), 0, None, ({},) * len(offsets))
    return OffsetRange("a.decisions", partition, 0, 30, "id", decisions=decisions)


@pytest.fixture
def rows(spark: Any, plan: Plan) -> LogRows:
    return LogRows(plan, spark.range(30).selectExpr(*RECORD), lambda frame: frame.select("partition", "offset"), 1)


def test_only_what_came_true_has_rows(rows: LogRows) -> None:
    found = rows.decided([decided(0, 2, 4), decided(1, 5, 4)]).to_arrow().to_pylist()
    assert [(row["partition"], row["offset"]) for row in found] == [(0, 2), (0, 4), (1, 5)]
    assert rows.decided([decided(0)]).to_arrow().num_rows == 0


@pytest.mark.parametrize(
    ("driver_bytes", "large"), [(10**9, 0), (6 * 256, 1), (1, 5)], ids=["all", "the small ones", "none"]
)
def test_what_is_known_of_a_record_is_the_same_whoever_reads_it(
    spark: Any, plan: Plan, monkeypatch: pytest.MonkeyPatch, driver_bytes: int, large: int
) -> None:
    """The driver, or for large ones the executors: a record without a value is small, and garbage as good as any."""
    proposals = [
        Proposal(
            0,
            version,
            {"in": Range("id", version, version + 1)},
            "a",
            Body(Counts(), [(b"key", b"x" * size)], b""),
            Kind.STEP,
            "log",
        )
        for version, size in enumerate((1, 100, 1_000, 20))
    ]
    values = [*map(PROPOSALS.encode, proposals), b"\1garbage", None]
    listed = ", ".join(
        f"({at}, unhex('{value.hex()}'))" if value else f"({at}, NULL)" for at, value in enumerate(values)
    )
    frame = spark.sql(
        "SELECT cast(NULL AS binary) key, value, 0 partition, cast(at AS bigint) offset, timestamp_seconds(0) timestamp"
        f" FROM VALUES {listed} AS v(at, value)"
    )
    by_executors: list[int] = []

    def counted(frame: DataFrame, *more: Any) -> DataFrame:
        by_executors.append(frame.count())
        return map_in_arrow(frame, *more)

    monkeypatch.setattr("onefold.spark_sink.spark.decided.map_in_arrow", counted)
    log = f"{plan.domain.name}.decisions"
    found = LogRows(replace(plan, driver_reading_bytes=driver_bytes), frame, lambda it: it, 1, len(values)).seen()[
        log, 0
    ]

    expected = [seen(at, Record(at, None, value, 0).fingerprint(), *summary(value)) for at, value in enumerate(values)]
    assert sorted(found, key=lambda one: one.offset) == expected
    assert sum(by_executors) == large


def test_code_is_compiled_once_and_not_for_each_batch(spark: Any, rows: LogRows) -> None:
    """However few offsets there are, and of whichever partitions: in the code they would make it another one each time."""

    def compiled() -> int:
        return int(spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount())

    for number in range(3):
        before = compiled()
        assert rows.decided([decided(number % 2, 10 + number)]).to_arrow().num_rows == 1
        assert number == 0 or compiled() == before
