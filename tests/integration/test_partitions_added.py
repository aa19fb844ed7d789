"""Partitions that somebody adds to a topic while its pipeline runs: said within a minute, everywhere, and nothing is lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.exit_codes import REFUSED
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, standing
from onefold.proof.expect import Oracle
from onefold.proof.owner import Owner
from onefold.proof.workloads import runner
from onefold.stack.ports import free_ports
from onefold.status_file import read
from onefold.telemetry import UNREAD
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


@pytest.mark.parametrize("replicas", [1, 2], ids=["elastic", "replicas"])
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
