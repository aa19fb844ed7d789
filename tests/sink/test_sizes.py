"""How large the records of a decision log are, about, and how many of them a batch has therefore."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from onefold.spark_sink.landing.identity import ahead
from onefold.spark_sink.landing.ledger import OffsetRange
from onefold.spark_sink.landing.protocols import Reach, Record
from onefold.spark_sink.landing.sizes import mean_bytes
from onefold.spark_sink.plan import LOG_BATCH_BYTES, Plan


class Log:
    """Records as large as their offset; before offset 10 there are none."""

    def record_from(self, topic: str, partition: int, offset: int) -> Record | None:
        return Record(offset, None, bytes(offset), 0) if offset >= 10 else None

    def reach(self, topics: list[str]) -> dict[tuple[str, int], Reach]:
        return {(topic, partition): Reach(0, end) for topic in topics for partition, end in enumerate((30, 30, 0))}


def test_the_first_record_and_the_one_in_the_middle_are_looked_at() -> None:
    assert mean_bytes(Log(), [OffsetRange("log", 0, 10, 30, "id"), OffsetRange("log", 1, 30, 50, "id")]) == 25
    assert mean_bytes(Log(), [OffsetRange("log", 0, 0, 3, "id")]) == 0
    assert mean_bytes(Log(), []) == 0


def test_what_lies_ahead_leaves_out_what_has_landed() -> None:
    """Of a partition in which nothing is new there is the last record; of an empty one nothing."""
    start = {("log", 2): 0, ("log", 1): 7, ("log", 0): 30}
    expected = [OffsetRange("log", 0, 29, 30, "id"), OffsetRange("log", 1, 7, 30, "id")]
    assert ahead(cast(Any, Log()), start, {"log": "id"}) == expected


@pytest.mark.parametrize(
    ("mean", "covers"), [(0.0, 4_000), (300.0, 4_000), (LOG_BATCH_BYTES / 1000, 1_000), (2_000_000.0, 400)]
)
def test_a_batch_has_as_many_decisions_as_may_be_kept(sink_plan: Plan, mean: float, covers: int) -> None:
    """The smaller they are the more, or a sink that is behind stays behind; and never more than it was told."""
    assert sink_plan.of_decisions(mean).max_decisions == covers
    assert replace(sink_plan, max_decisions=50).of_decisions(mean).max_decisions == 50


@pytest.fixture
def sink_plan() -> Plan:
    none: Any = None
    step: Callable[[str], None] = lambda name: None  # noqa: E731
    return Plan(none, "", {}, {}, "", "", none, none, step)
