"""Health of real services: red when there is work and nothing moves, though the process is there and answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from onefold.config.metrics_server import Exposed, serve
from onefold.processor.core.topology import Topology
from onefold.spark_sink.kafka.topics import Topics
from onefold.spark_sink.spark.query import Query
from onefold.spark_sink.standing import Standing
from onefold.stack.ports import free_ports
from onefold.telemetry import (
    BATCH_S,
    BATCHES,
    DEAD_LETTERS,
    HEALTHY,
    OFFSETS,
    QUERY_RUNS,
    RECORDS,
    ROWS,
    TASKS,
    TO_FOLD,
    TO_LAND,
    TRANSACTION_S,
    TRANSACTIONS,
    WRITTEN,
)
from onefold.workloads import runner
from tests.support.made_up_domain import MadeUp
from tests.support.processes import drained, instance, judge, produce
from tests.support.proxy import FreezingProxy
from tests.support.sink import LANDED_IN_S
from tests.support.told import asked, sums
from tests.support.versions import POISON_METERS
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("unhealthy-is-said")

STALL_S = 3.0


def healthy(port: int) -> bool:
    return asked(port, "/healthz")[0] == 200


@pytest.mark.long  # 15 s
def test_a_processor_whose_handler_hangs(
    fresh_domain: Callable[..., Topology], client: dict[str, str], tmp_path: Path
) -> None:
    """Well while it folds and when it has nothing to do; red when a handler does not come to its end; and it tells all that
    it has done.
    """
    topology, port = fresh_domain("runner"), free_ports(1)[0]
    told: dict[str, Any] = {"metrics_port": port, "stall_s": STALL_S}
    inputs = [(made.key, made.value) for made in runner.generate(1, 300)]
    with instance(topology, client, tmp_path / "log", version="with_hang", **told):
        produce(client, topology.inputs[0], [*inputs, (b"1", b"not JSON")])
        drained(topology, client)
        eventually(lambda: sums(port).get(TO_FOLD) == 0, 20, "it says that nothing waits")
        expected = judge(topology, client).counts
        found = sums(port)
        assert (found[DEAD_LETTERS], found[TASKS], found[HEALTHY]) == (expected.dead, 2, 1)
        assert found[RECORDS] == expected.accepted + expected.ignored + expected.repartitioned + expected.dead
        assert found[TRANSACTIONS] >= found[f"{TRANSACTION_S}_count"] > 0
        assert found[WRITTEN] > expected.accepted
        began_at = found["onefold_progress_timestamp_seconds"]
        eventually(lambda: sums(port)["onefold_progress_timestamp_seconds"] > began_at + 2 * STALL_S, 30, "it idles")
        assert healthy(port)

        poison = b'{"user_id":1,"run_id":1,"timestamp_utc":1,"sequence_id":999999,"distance_meters":%d}' % POISON_METERS
        produce(client, topology.inputs[0], [(b"1", poison)])
        eventually(lambda: not healthy(port), 30, "it is red")
        status, text = asked(port, "/healthz")
        assert (status, text.startswith("runner: no progress for ")) == (503, True)
        assert sums(port)[HEALTHY] == 0


def test_a_processor_without_its_topics_is_not_well(
    fresh_domain: Callable[..., Topology], client: dict[str, str], tmp_path: Path
) -> None:
    """It lives, and waits for Kafka."""
    topology, port = fresh_domain("runner"), free_ports(1)[0]
    nobody = {"bootstrap.servers": "127.0.0.1:9"}
    with instance(topology, nobody, tmp_path / "log", metrics_port=port, stall_s=STALL_S):
        eventually(lambda: asked(port, "/healthz")[0] == 503, 30, "it is red")
        assert "it waits for Kafka and its topics" in asked(port, "/healthz")[1]


def test_a_sink_whose_database_has_stopped_answering(
    made_up: MadeUp,
    query: Callable[..., Query],
    sink_topics: Topics,
    database: str,
    reader: "psycopg.Connection[Any]",
) -> None:
    """No connection is cut, and no error is raised: it is red because nothing lands. Afterwards it goes on."""
    at = conninfo.conninfo_to_dict(database)
    proxy, port = FreezingProxy(str(at["host"]), int(str(at["port"]))), free_ports(1)[0]
    behind = conninfo.make_conninfo(database, host="127.0.0.1", port=proxy.port)
    made_up.create_topics(partitions=2)
    made_up.send(range(30))
    telemetry = Exposed("sink", [made_up.name], STALL_S)
    serve(telemetry, "127.0.0.1", port)
    one = query(postgres_dsn=behind, telemetry=telemetry)
    one.start()
    standing = Standing(one, sink_topics.ends, telemetry)
    standing.running = True

    def well() -> bool:
        standing.ask()
        return healthy(port)

    eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "all output records are written to PostgreSQL")
    eventually(lambda: well() and sums(port)[TO_LAND] == 0, LANDED_IN_S, "it is well, and nothing waits")
    eventually(
        lambda: sums(port)[BATCHES] == sums(port)[f"{BATCH_S}_count"] >= 1, LANDED_IN_S, "the last batch is counted"
    )
    found = sums(port)
    assert found[OFFSETS] >= 30
    assert found[ROWS] > 0
    assert found[QUERY_RUNS] == 1

    proxy.passes.clear()
    try:
        made_up.send(range(30, 40))
        eventually(lambda: not well(), LANDED_IN_S, "it is red")
        assert "offsets wait" in asked(port, "/healthz")[1]
    finally:
        proxy.passes.set()
    eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "all output records are written to PostgreSQL")
    made_up.check(reader)
    eventually(well, LANDED_IN_S, "it is well again")
    proxy.close()
