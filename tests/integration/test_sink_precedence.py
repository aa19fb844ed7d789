"""For whom something waits, by a real ledger."""

from contextlib import closing

import pytest

from onefold.error_codes import Code
from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.errors import Waiting
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.connection import connect
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from onefold.spark_sink.precedence import behind

pytestmark = pytest.mark.promise("precedence-at-start")


def test_a_pipeline_is_behind_when_kafka_has_more_than_postgres(plan: Plan) -> None:
    name, topic = plan.domain.name, plan.reads[0]

    def ends(topics: list[str]) -> dict[Partition, int]:
        assert topics == plan.reads
        return {(topic, 0): 5}

    def silent(topics: list[str]) -> dict[Partition, int]:
        raise Waiting(Code.KAFKA_SILENT, "Kafka does not answer")

    assert behind([plan], ends) == frozenset(), "before the first start Postgres cannot tell"
    migrate(plan.postgres_dsn, ENGINE, ENGINE_SQL)
    assert behind([plan], ends) == {name}, "nothing of it has landed yet"
    with closing(connect(plan.postgres_dsn, plan.writer)) as connection:
        ledger.open_partition(connection, name, (topic, 0), 4, "an id", plan.writer)
        assert behind([plan], ends) == {name}
        connection.execute("UPDATE onefold.ledger SET next_offset = 5")
    assert behind([plan], ends) == frozenset()
    assert behind([plan], silent) == frozenset()
