"""The order in which a sink starts its queries, by a real ledger."""

from collections.abc import Mapping
from contextlib import closing
from types import SimpleNamespace
from typing import cast

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.spark_sink import service
from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.postgres.connection import connect
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from onefold.spark_sink.query_config import QueryConfig


def test_the_query_with_the_largest_backlog_starts_first(database: str) -> None:
    """Without an answer of PostgreSQL or Kafka the queries start in the order of the command."""

    def plan(name: str) -> QueryConfig:
        domain = SimpleNamespace(name=name)
        return cast(
            "QueryConfig", SimpleNamespace(domain=domain, reads=[f"{name}.out"], postgres_dsn=database, writer="sink")
        )

    plans = [plan(name) for name in ("idle", "new", "behind")]

    def ends(topics: list[str]) -> Mapping[Partition, int]:
        assert topics == ["idle.out", "new.out", "behind.out"]
        return {("idle.out", 0): 900, ("new.out", 0): 5, ("new.out", 1): 6, ("behind.out", 0): 100}

    def silent(topics: list[str]) -> Mapping[Partition, int]:
        raise Retriable(Code.KAFKA_SILENT, "Kafka does not answer")

    def order(ends: service.EndOffsets) -> list[str]:
        return [plan.domain.name for plan in service._by_backlog(plans, ends)]

    assert order(ends) == ["idle", "new", "behind"], "a database without a ledger gives no answer"
    migrate(database, ENGINE, ENGINE_SQL)
    with closing(connect(database, "sink")) as connection:
        ledger.open_partition(connection, "idle", ("idle.out", 0), 900, "an id", "sink")
        ledger.open_partition(connection, "behind", ("behind.out", 0), 40, "an id", "sink")
    assert order(ends) == ["behind", "new", "idle"]
    assert order(silent) == ["idle", "new", "behind"]
