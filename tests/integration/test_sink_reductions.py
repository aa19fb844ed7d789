"""What the queries of `sql/reduce` are turned into, by a real Spark: their columns, and the plan of a small batch."""

from pathlib import Path
from typing import Any

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.spark import read, reduce
from tests.support.coded import raises

# As Kafka's reader gives them.
RECORD = ("cast(NULL AS binary) key", "cast(NULL AS binary) value", "'' topic", "0 partition", "id offset",
          "cast(0 AS timestamp) timestamp")  # fmt: skip


def test_what_one_task_reads_it_also_adds_up(spark: Any, checkout: Path) -> None:
    """Otherwise rows would be exchanged for nothing: a tenth of a small batch. Nor are they sorted."""
    domain = load_domain("trades", checkout / "avro", checkout / "sql")
    targets = {**domain.targets, **reduce.targets(spark, domain, checkout / "sql")}
    batch = read.lines(spark.range(1).selectExpr(*RECORD), domain).coalesce(1)
    plan = reduce.reducer(domain, targets)(batch.persist())._jdf.queryExecution().executedPlan().toString()
    batch.unpersist()
    assert "HashAggregate" in plan
    assert "Exchange" not in plan
    assert "SortAggregate" not in plan


def test_a_reduction_that_does_not_work_is_named(spark: Any, checkout: Path, tmp_path: Path) -> None:
    path = _copied(checkout / "sql", tmp_path / "own") / "reduce/trades.deltas.landed.sql"
    path.write_text(path.read_text(encoding="utf-8").replace("traded_at", "trading_at"), encoding="utf-8")
    domain = load_domain("trades", checkout / "avro", tmp_path / "own")
    with raises(Misconfigured, Code.SQL_WRONG, "trades.deltas.landed.sql"):
        reduce.targets(spark, domain, tmp_path / "own")


def test_a_reduction_may_end_in_a_comment(spark: Any, checkout: Path, tmp_path: Path) -> None:
    """The sink puts what it needs around the query: none of that may become a part of the comment."""
    path = _copied(checkout / "sql", tmp_path / "own") / "reduce/trades.deltas.landed.sql"
    path.write_text(path.read_text(encoding="utf-8").rstrip() + " -- that is all", encoding="utf-8")
    domain = load_domain("trades", checkout / "avro", tmp_path / "own")
    as_it_is = load_domain("trades", checkout / "avro", checkout / "sql")
    assert reduce.targets(spark, domain, tmp_path / "own") == reduce.targets(spark, as_it_is, checkout / "sql")


def _copied(root: Path, copy: Path) -> Path:
    for folder in ("reduce", "merge"):
        (copy / folder).mkdir(parents=True)
        for file in (root / folder).glob("*.sql"):
            (copy / folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return copy
