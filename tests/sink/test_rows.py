"""The rows of a batch in Spark: into how many tasks they go, what is kept, and which are read. Without Spark."""

from types import SimpleNamespace
from typing import Any

import pytest

from onefold.spark_sink.spark import rows
from onefold.spark_sink.spark.rows import SparkRows, within
from tests.support.frames import LEFT, Frame, columns


def spark_rows(frame: Frame, *, reduced: bool, fails: bool = False, one_task: bool = True) -> Any:
    domain = SimpleNamespace(reductions=("one",) if reduced else ())
    plan = SimpleNamespace(domain=domain, map_fails=lambda: fails)
    made: Any = SparkRows
    return made(plan, frame, lambda records: records, 4, one_task)


@pytest.mark.parametrize(("reduced", "offsets", "tasks"), [(True, 5, {1}), (True, 6, {4}), (False, 5, {4})], ids=str)
def test_one_task_reads_a_small_batch_that_is_reduced(
    monkeypatch: pytest.MonkeyPatch, reduced: bool, offsets: int, tasks: set[int]
) -> None:
    monkeypatch.setattr(rows, "ONE_TASK_OFFSETS", 5)
    frame = Frame((*LEFT, 4))
    with spark_rows(frame, reduced=reduced).held(offsets, reread=False) as held:
        assert held.to_arrow() == [(*LEFT, 4)]
    assert set(frame.coalesced) == tasks


def test_on_a_cluster_each_executor_has_tasks_of_a_small_batch() -> None:
    frame = Frame((*LEFT, 4))
    with spark_rows(frame, reduced=True, one_task=False).held(1, reread=False) as held:
        assert held.to_arrow() == [(*LEFT, 4)]
    assert set(frame.coalesced) == {4}


@pytest.mark.parametrize(
    ("reduced", "reread", "kept"),
    [(True, False, 1), (False, True, 1), (True, True, 1), (False, False, 0)],
    ids=["reduced", "in parts", "both", "as it comes"],
)
def test_records_that_several_jobs_read_are_kept_while_they_are_needed(reduced: bool, reread: bool, kept: int) -> None:
    """Whatever happens meanwhile; otherwise each of them would read Kafka."""
    frame, seen = Frame((*LEFT, 4)), []

    def fail() -> None:
        with spark_rows(frame, reduced=reduced).held(1, reread=reread):
            seen.append(frame.kept)
            raise ValueError("meanwhile")

    with pytest.raises(ValueError, match="meanwhile"):
        fail()
    assert seen == [kept]
    assert frame.kept == 0


def test_only_records_within_the_span_of_their_partition_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of a partition without one."""
    monkeypatch.setattr(rows, "sf", columns)
    frame: Any = Frame(("t", 0, 1), ("t", 0, 2), ("t", 0, 3), ("t", 1, 2), ("u", 0, 1), ("t", 2, 9))
    spans = {("t", 0): range(2, 3), ("t", 1): range(3, 9), ("u", 0): range(2)}
    kept: Any = within(frame, spans)
    assert kept.records == [("t", 0, 2), ("u", 0, 1)]
    again = spark_rows(frame, reduced=True).within(spans, 1)
    assert again.to_arrow() == kept.records
