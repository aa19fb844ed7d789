"""Partitions that somebody adds to the topics of a pipeline, while it runs or stands: said everywhere, and nothing is lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.operate.partitions import added
from onefold.processor.core.errors import Refused
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.io.admin import connect, standing
from onefold.processor.io.partitions import check_states
from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from onefold.stack.ports import free_ports
from onefold.status_file import read
from onefold.telemetry import UNREAD
from onefold.verify.expect import Oracle
from onefold.verify.owner import Owner
from onefold.verify.verdict import UNKNOWN
from onefold.verify.verifier import verify
from onefold.workloads import runner
from tests.support.coded import raises
from tests.support.processes import drained, instance, produce, records
from tests.support.told import asked, sums
from tests.support.waiting import eventually

UPDATES = "runner.updates"
SAID = (
    "topic runner.updates has 3 partitions, and runner was started with 2: no task reads what lies in runner.updates/2"
)


def add_partition(client: dict[str, str], topic: str, count: int) -> None:
    admin = connect(client)
    admin.create_partitions([NewPartitions(topic, count)])[topic].result()
    eventually(
        lambda: len(admin.list_topics().topics[topic].partitions) == count, 10, f"{topic} has {count} partitions"
    )


@pytest.mark.promise("added-partitions")
@pytest.mark.parametrize(
    "replicas",
    [pytest.param(1, id="elastic"), pytest.param(2, id="replicas", marks=pytest.mark.long)],  # 14 s
)
def test_an_input_gets_a_partition_while_it_is_processed(
    fresh_domain: Callable[..., Topology], client: dict[str, str], tmp_path: Path, replicas: int
) -> None:
    """The tasks go on with the records of theirs, also of keys that producers send elsewhere now; the others wait. What was
    started by then goes on although the group gives it the new partition; what starts now is refused.
    """
    topology, port = fresh_domain("runner", 2), free_ports(1)[0]
    quick = {**client, "topic.metadata.refresh.interval.ms": "500"}
    told: dict[str, Any] = {"metrics_port": port, "stall_s": 30.0, "status_file": str(tmp_path / "status")}
    options = {**told, "replicas": replicas}
    with instance(topology, quick, tmp_path / "log", **options) as process:
        produce(client, UPDATES, [(made.key, made.value) for made in runner.generate(1, 200)])
        drained(topology, client)
        add_partition(client, UPDATES, 3)
        eventually(lambda: SAID in read(tmp_path / "status").get("detail", ""), 60, "the status says so")
        status, text = asked(port, "/healthz")
        assert (status, SAID in text) == (503, True)
        eventually(lambda: sums(port).get(UNREAD) == 1, 10, "so do the metrics")
        assert json.dumps(SAID)[1:-1] in (tmp_path / "log").read_text(encoding="utf-8")
        found = added(Settings(bootstrap_servers=client["bootstrap.servers"]))
        assert found["runner"].startswith(
            f"topic {UPDATES} has 3 partitions, and {topology.changelog} 2: no task reads"
        )

        inputs = [(made.key, made.value) for made in runner.generate(2, 200)]
        for partition in range(3):
            produce(client, UPDATES, inputs[partition::3], partition)

        def read_to_the_end() -> bool:
            found = standing(topology, client)
            return all(found[UPDATES, partition].reached >= found[UPDATES, partition].end for partition in range(2))

        eventually(read_to_the_end, 30, "the tasks go on")
        assert process.poll() is None
        assert standing(topology, client)[UPDATES, 2].reached == 0
        with instance(topology, quick, tmp_path / "other", name="other", replicas=replicas) as other:
            assert other.wait(60) == REFUSED
        assert "inputs and changelog must have the same number of partitions" in (tmp_path / "other").read_text(
            encoding="utf-8"
        )

    oracle = Oracle(runner.WORKLOAD, 2, owner=Owner(str(connect(client).list_topics().cluster_id), "runner"))
    for record in records(client, UPDATES):
        if record.partition < 2:
            oracle.feed(record)
    expected = oracle.settled()
    assert not expected.uncopied
    assert not expected.doubled()
    rows = {row for row, _ in expected.model.rows["runner.messages"].values()}
    assert len(rows) == len({record.value for record in records(client, "runner.messages")})


STATES_OF_TWO = "the states of runner are of 2 partitions, and its topics have 3"


def add_everywhere(client: dict[str, str], topology: Topology, count: int) -> None:
    """To the inputs, the changelog and the decision log, as far as these exist."""
    there = connect(client).list_topics().topics
    for topic in (*topology.reads, topology.changelog, topology.decisions):
        if topic in there:
            add_partition(client, topic, count)


@pytest.mark.promise("partitions-added-alike")
@pytest.mark.parametrize("replicas", [1, 2], ids=["elastic", "replicas"])
def test_inputs_and_changelog_get_a_partition_while_no_processor_runs(
    fresh_domain: Callable[..., Topology], client: dict[str, str], database: str, tmp_path: Path, replicas: int
) -> None:
    """The topics agree with one another, and the keys no longer lie where their states do."""
    topology, log = fresh_domain("runner", 2), tmp_path / "log"
    with instance(topology, client, log, replicas=replicas) as process:
        produce(client, UPDATES, [(made.key, made.value) for made in runner.generate(1, 200)])
        drained(topology, client)
        process.terminate()
        assert process.wait(60) == 0
    add_everywhere(client, topology, 3)
    produce(client, UPDATES, [(made.key, made.value) for made in runner.generate(2, 200)])

    with instance(topology, client, log, replicas=replicas) as process:
        assert process.wait(60) == REFUSED
    said = log.read_text(encoding="utf-8")
    assert STATES_OF_TWO in said
    assert "onefold reset runner" in said
    assert standing(topology, client)[UPDATES, 2].reached == 0
    migrate(database, ENGINE, ENGINE_SQL)
    verdict = verify("runner", client=client, dsn=database, timeout_s=0)
    assert verdict.outcome == UNKNOWN
    assert STATES_OF_TWO in verdict.reason


def test_a_progress_of_a_release_before_names_no_partitions(
    fresh_domain: Callable[..., Topology], client: dict[str, str]
) -> None:
    """It is taken; the next transaction names them."""
    topology = fresh_domain("runner", 2)
    before = {"version": 1, "inputs": {}, "counts": {}, "transactions": 1}
    produce(client, topology.changelog, [(PROGRESS_KEY, json.dumps(before).encode())], 0)
    check_states(connect(client), topology, 2, client)
    produce(client, topology.changelog, [(PROGRESS_KEY, json.dumps({**before, "partitions": 3}).encode())], 1)
    with raises(Refused, Code.PARTITIONS_CHANGED, "runner"):
        check_states(connect(client), topology, 2, client)
