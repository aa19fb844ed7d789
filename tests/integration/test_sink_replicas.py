"""A counter, two replicas and two sinks, on a broker, a Postgres and a Spark that are real."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.config.settings import Settings
from onefold.operate import positions
from onefold.processor.core.topology import Topology
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.spark.query import Query
from onefold.spark_sink.supervisor import QuerySupervisor
from onefold.verify.verdict import VALID
from onefold.verify.verifier import verify
from onefold.workloads import averages
from tests.support.decided_history import lost
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, judge, send
from tests.support.sink_children import SinkOf
from tests.support.waiting import eventually

LANDED_IN_S = 150.0


@pytest.mark.matrix
def test_a_counter_is_right_with_two_replicas_and_two_sinks(
    fresh_domain: Callable[..., Topology],
    client: dict[str, str],
    query: Callable[..., Query],
    sink_of: SinkOf,
    checkout: Path,
    database: str,
    reader: "psycopg.Connection[Any]",
    tmp_path: Path,
) -> None:
    """Two streams, whose alarms are added to a counter: what is added twice stays. A replica is killed when it has proposed,
    and a sink when it has added. Each sink is the only one for a while: so it is certain that both have landed something.
    """
    topology = fresh_domain("averages")
    settings = Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn=database)
    migrate_all(database, checkout / "sql")  # or there would be no ledger to look at before a sink has started
    numbers = averages.generate(7, 1_000_000)
    replica = partial(instance, topology, client, replicas=2)
    start_two = partial(sink_of("averages"), writer="two")
    domain = load_domain("averages", checkout / "avro", checkout / "sql")
    one = QuerySupervisor(query(writer="one", domain=domain, sql_root=checkout / "sql"), LANDED_IN_S, time.monotonic)

    def more(count: int = 200) -> None:
        send(client, list(islice(numbers, count)))

    def go_on(count: int = 200) -> None:
        more(count)
        one.tick()

    def killed(process: "subprocess.Popen[bytes]") -> int | None:
        more()
        return process.poll()

    def landed_by(writer: str) -> bool:
        landed = "SELECT FROM onefold.ledger WHERE sink = 'averages' AND writer = %s AND last_offset IS NOT NULL"
        return reader.execute(landed, (writer,)).rowcount > 0

    def some_are_lost() -> bool:
        go_on()
        drained(topology, client)
        return lost(topology, client) > 0

    def all_is_landed() -> bool:
        one.tick()
        return positions.lag_of("averages", settings)["events"] == 0

    with ExitStack() as stack:
        stack.enter_context(replica(tmp_path / "a", name="a"))
        b = stack.enter_context(replica(tmp_path / "b", name="b", failpoint="after_append:3"))
        two = start_two("sink.after_merge:3")
        more(1_000)
        eventually(partial(landed_by, "two"), LANDED_IN_S, "a sink has landed something")
        for process in (two.process, b):
            assert eventually(partial(killed, process), LANDED_IN_S, "it is killed", 0.5) == -signal.SIGKILL
        go_on()
        eventually(partial(landed_by, "one"), LANDED_IN_S, "the other sink has landed something")
        stack.enter_context(replica(tmp_path / "b", name="b"))
        two = start_two()
        eventually(lambda: two.is_in("running"), LANDED_IN_S, "the killed sink runs again")
        go_on(1_000)
        eventually(some_are_lost, LANDED_IN_S, "a replica was slower with a decision")
        eventually(all_is_landed, LANDED_IN_S, "all that is decided has landed")
    judge(topology, client)
    verdict = verify("averages", client=client, dsn=database, timeout_s=10)
    assert (verdict.outcome, verdict.findings) == (VALID, []), verdict.reason
    sums = "SELECT (SELECT sum(alarms) FROM averages.alarms), count(*) FROM averages.averages WHERE numbers > 100"
    ((alarms, told),) = reader.execute(sums).fetchall()
    assert alarms == told > 0
