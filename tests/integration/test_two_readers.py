"""The verifier reads Kafka by the Python client, as the processor does, and the sink by Java's: both read the same records."""

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, as no checker sees

from onefold.spark_sink.kafka.client import java_client_options
from onefold.verify.log import Log
from onefold.verify.record import Record
from tests.support.infrastructure import delete_topics, transactional
from tests.support.processes import produce
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, PARTITIONS = "two.readers", 3


def transactions(client: dict[str, str]) -> None:
    """Some are committed and some aborted, over several partitions; the last one of each partition is aborted."""
    producer = transactional(client, TOPIC)
    for number in range(20):
        producer.begin_transaction()
        for record in range(3 * number + 1):
            producer.produce(TOPIC, b"%d" % record, b"key", (number + record) % PARTITIONS)
        assert producer.flush(20) == 0, "what is aborted lies in the log too"
        producer.abort_transaction(20) if number % 3 == 1 else producer.commit_transaction(20)


@pytest.mark.broker
@pytest.mark.promise("verify-once")
def test_both_clients_read_the_same_records_of_each_partition(
    spark: "SparkSession", client: dict[str, str], bootstrap_servers: str
) -> None:
    admin = AdminClient({**client})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    try:
        transactions(client)
        produce(client, TOPIC, [(b"%d" % number, b"value") for number in range(100)])
        transactions(client)
        found: list[Record] = []
        with closing(Log(client, [TOPIC])) as log:
            eventually(lambda: log.stable_ends() == log.high_ends(), 10, "all transactions are ended")
            log.read(log.stable_ends(), found.append)
        options = {f"kafka.{name}": value for name, value in java_client_options(bootstrap_servers, {}, {}).items()}
        rows = (
            spark.read.format("kafka")
            .options(**options)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", TOPIC)
            .load()
            .select("partition", "offset")
            .collect()
        )
    finally:
        delete_topics(admin, (TOPIC,))
    by_spark = Counter(row.partition for row in rows)
    assert Counter(record.partition for record in found) == by_spark
    assert {record[1:3] for record in found} == {(row.partition, row.offset) for row in rows}
    assert len(found) == len(rows) == by_spark.total() == 846
