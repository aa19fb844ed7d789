"""Tables that are filled from the decision log: replicas, a broker, a Postgres and a Spark that are real, and no publisher."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.chaos.progress import ProgressMonitor
from onefold.error_codes import Code
from onefold.operate import positions
from onefold.operate.settings import Settings
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, delete_before
from onefold.proof.verdict import INVALID, UNKNOWN, VALID, Verdict
from onefold.proof.verify import verify
from onefold.proof.workloads import averages, campaigns, runner, trades
from onefold.proof.workloads.shaping import Shape
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.decisions import offset_of, place
from onefold.spark_sink.errors import Refused
from onefold.spark_sink.spark.query import Query
from onefold.spark_sink.supervisor import QuerySupervisor
from tests.support.coded import raises
from tests.support.decided_history import lost
from tests.support.migrated import migrate_all
from tests.support.noted import noted
from tests.support.processes import drained, instance, judge, opened, produce, records, send
from tests.support.sink_children import SinkOf
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
MakeQuery = Callable[..., Query]
WORKLOADS = {"runner": runner, "campaigns": campaigns, "trades": trades}
LANDED_IN_S = 150.0
NEVER_S = 1e9


class Landing:
    """The sink of a domain, landing from its decision log."""

    def __init__(self, query: MakeQuery, checkout: Path, topology: Topology, client: dict[str, str], dsn: str) -> None:
        root = checkout / "sql"
        self.topology = topology
        self.client = client
        self.dsn = dsn
        self._query = query
        self._options = {
            "domain": load_domain(topology.name, checkout / "avro", root),
            "sql_root": root,
            "decided": True,
        }
        self.settings = Settings(bootstrap_servers=client["bootstrap.servers"], postgres_dsn=dsn)

    def supervisor(self, **changes: Any) -> QuerySupervisor:
        return QuerySupervisor(self._query(**{**self._options, **changes}), LANDED_IN_S, time.monotonic)

    def until_drained(self, *supervisors: QuerySupervisor) -> None:
        def landed() -> bool:
            for one in supervisors:
                one.tick()
            return positions.lag_of(self.topology.name, self.settings)["events"] == 0

        for topic in self.topology.inputs:
            records(self.client, topic)  # a commit is answered before its records can be read
        eventually(landed, LANDED_IN_S, "all that is decided has landed")

    def judged(self) -> Verdict:
        settings: dict[str, Any] = {"client": self.client, "dsn": self.dsn, "timeout_s": 10}
        return verify(self.topology.name, **settings, from_start=True, processes=2)


def wave(domain: str, seed: int, count: int, shape: Shape | None = None) -> list[tuple[bytes | None, bytes | None]]:
    return [(made.key, made.value) for made in WORKLOADS[domain].generate(seed, count, shape=shape)]


def is_seen_to_land(monitor: ProgressMonitor, since: float) -> bool:
    """Whether there was progress in between: without any, all of the time is one stall."""
    now = time.monotonic()
    return now - since > 1 and monitor.stalls(since, now)["sink"] < (now - since) / 2


# From day to day the pipeline whose rows are summed; by default staged by the driver.
TIERS = [[], [pytest.mark.long], *[[pytest.mark.matrix]] * 4]
STAGED = [
    pytest.param(domain, size, id=f"{domain}-{by} staging", marks=TIERS[number])
    for number, (domain, (by, size)) in enumerate(
        product(reversed(WORKLOADS), (("driver", 1_000_000_000), ("executor", -1)))
    )
]


@pytest.mark.parametrize(("domain", "driver_staging_bytes"), STAGED)
def test_the_tables_need_no_publisher(
    fresh_domain: MakeDomain,
    client: dict[str, str],
    query: MakeQuery,
    checkout: Path,
    database: str,
    tmp_path: Path,
    domain: str,
    driver_staging_bytes: int,
) -> None:
    """Nobody publishes anything, one of the replicas is killed, and rows go on. Later somebody does, and nothing changes."""
    topology = fresh_domain(domain)
    landing = Landing(query, checkout, topology, client, database)
    silent: dict[str, Any] = {"replicas": 2, "publishes_after_s": NEVER_S}
    with ExitStack() as stack:
        a = stack.enter_context(instance(topology, client, tmp_path / "a", name="a", **silent))
        stack.enter_context(instance(topology, client, tmp_path / "b", name="b", **silent))
        sink = landing.supervisor(
            driver_staging_bytes=driver_staging_bytes, driver_reading_bytes=max(1, driver_staging_bytes)
        )
        produce(client, topology.inputs[0], wave(domain, 1, 300))
        landing.until_drained(sink)
        a.kill()
        a.wait()
        with ProgressMonitor(domain, landing.settings) as monitor:
            began = time.monotonic()
            produce(client, topology.inputs[0], wave(domain, 2, 300))
            landing.until_drained(sink)
            eventually(lambda: is_seen_to_land(monitor, began), 30, "chaos sees that the tables are filled")
        assert not any(records(client, topic) for topic in topology.outputs), "nobody has published"
        verdict = landing.judged()
        assert (verdict.outcome, verdict.findings) == (VALID, []), verdict.reason
        assert verdict.processes == 1, "a decision log is not divided"
        with psycopg.connect(database) as connection:
            found = noted(connection, client)
        assert {one.topic for one in found} == {topology.decisions}
        assert all(one.oldest_ms in one.times for one in found), "of the decision, not of what it writes"

        stack.enter_context(instance(topology, client, tmp_path / "c", name="c", replicas=2))
        produce(client, topology.inputs[0], wave(domain, 3, 300, Shape(hostile=0.05, keyless=0.05)))
        drained(topology, client)
        landing.until_drained(sink)
    judge(topology, client)
    verdict = landing.judged()
    assert (verdict.outcome, verdict.findings) == (VALID, []), verdict.reason
    if domain == "trades":
        assert wrong_origins(landing) == {"wrong origin": 1}


@pytest.mark.matrix  # from day to day test_sink_interleaved.py and test_sink_source.py
def test_two_sinks_and_the_way_back_that_is_refused(
    fresh_domain: MakeDomain, client: dict[str, str], query: MakeQuery, checkout: Path, database: str, tmp_path: Path
) -> None:
    """Two sinks land one log in small batches. The judge sees what is wrong with a row's origin. When the task is no longer
    decided in the log, what was decided has landed, and the sink says why nothing more does."""
    topology = fresh_domain("trades")
    landing = Landing(query, checkout, topology, client, database)
    with instance(topology, client, tmp_path / "a", name="a", replicas=2):
        with instance(topology, client, tmp_path / "b", name="b", replicas=2):
            sinks = [landing.supervisor(writer=name, max_decisions=50) for name in ("one", "two")]
            for number in range(4):
                produce(client, topology.inputs[0], wave("trades", number, 100, Shape(hostile=0.05, keyless=0.05)))
            drained(topology, client)
            landing.until_drained(*sinks)
            assert landing.judged().outcome == VALID
            assert wrong_origins(landing) == {"wrong origin": 1}
        back = raises(Refused, Code.TABLES_OF_OTHER_TOPICS)
        with instance(topology, client, tmp_path / "elastic", name="e"), back:
            eventually(lambda: opened(tmp_path / "elastic"), 60, "the elastic process has the task")
            landing.until_drained(*sinks)
        assert positions.lag_of("trades", landing.settings)["events"] is None, "what it does now lands nowhere"
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS):
        landing.until_drained(landing.supervisor(writer="three"))
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS):
        landing.supervisor(writer="three", decided=False).tick()


@pytest.mark.matrix
def test_a_counter_is_right_with_two_replicas_and_two_sinks(
    fresh_domain: MakeDomain,
    client: dict[str, str],
    query: MakeQuery,
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
    landing = Landing(query, checkout, topology, client, database)
    migrate_all(database, checkout / "sql")  # or there would be no ledger to look at before a sink has started
    numbers = averages.generate(7, 1_000_000)
    replica = partial(instance, topology, client, replicas=2, decided_tables=True)
    start_two = partial(sink_of("averages"), writer="two", decided=["averages"])
    one = landing.supervisor(writer="one")

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
        landing.until_drained(one)
    judge(topology, client)
    verdict = landing.judged()
    assert (verdict.outcome, verdict.findings) == (VALID, []), verdict.reason
    sums = "SELECT (SELECT sum(alarms) FROM averages.alarms), count(*) FROM averages.averages WHERE numbers > 100"
    ((alarms, told),) = reader.execute(sums).fetchall()
    assert alarms == told > 0


def test_emptied_tables_are_filled_from_either(
    fresh_domain: MakeDomain, client: dict[str, str], query: MakeQuery, checkout: Path, database: str, tmp_path: Path
) -> None:
    """There and back, while replicas go on. From the log not once something of it is gone. Without empty tables a rebuild does
    it (test_rebuild.py).
    """
    topology = fresh_domain("runner")
    landing = Landing(query, checkout, topology, client, database)
    options: dict[str, Any] = {"replicas": 2, "decisions_kept_s": 0}
    waves = iter(range(1_000))

    def landed_and_judged(sink: QuerySupervisor) -> None:
        produce(client, topology.inputs[0], wave("runner", next(waves), 200))
        drained(topology, client)
        landing.until_drained(sink)
        verdict = landing.judged()
        assert (verdict.outcome, verdict.findings) == (VALID, []), verdict.reason
        sink.query.stop()

    with instance(topology, client, tmp_path / "a", name="a", decided_tables=True, **options):
        landed_and_judged(landing.supervisor())
        with raises(Refused, Code.TABLES_OF_OTHER_TOPICS):
            landing.supervisor(decided=False).tick()
        empty_the_tables(database)
        landed_and_judged(landing.supervisor(decided=False))
        empty_the_tables(database)
        landed_and_judged(landing.supervisor())
    delete_before(connect(client), topology.decisions, 0, 1)
    verdict = landing.judged()
    assert verdict.outcome == UNKNOWN
    assert "starts at offset 1: what was before is gone" in verdict.reason
    empty_the_tables(database)
    with raises(Refused, Code.RECORDS_DELETED, "offset 1"):
        landing.supervisor().tick()
    with instance(topology, client, tmp_path / "b", name="b", **options):
        landed_and_judged(landing.supervisor(decided=False))


def empty_the_tables(dsn: str) -> None:
    """What an administrator does by hand."""
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM onefold.ledger WHERE sink = 'runner'")
        connection.execute("DELETE FROM onefold.rejected WHERE sink = 'runner'")
        connection.execute("TRUNCATE runner.stats, runner.tendency, runner.messages")


def wrong_origins(landing: Landing) -> dict[str, int]:
    """What the judge finds when a row says that it comes from the record of the log before, whatever became of that."""
    with psycopg.connect(landing.dsn, autocommit=True) as connection:
        key, at = connection.execute(
            'SELECT trade_id, "offset" FROM trades.current ORDER BY 2 DESC LIMIT 1'
        ).fetchone() or ("", 0)
        spoil = 'UPDATE trades.current SET "offset" = %s WHERE trade_id = %s'
        connection.execute(spoil, (place(offset_of(at) - 1), key))
        verdict = landing.judged()
        connection.execute(spoil, (at, key))
    assert verdict.outcome == INVALID
    return verdict.kinds()
