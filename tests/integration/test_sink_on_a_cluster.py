"""A sink with executors on a standalone cluster of Spark: they have nothing but Spark, and the sink says it if none is there."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.exit_codes import UNAVAILABLE
from onefold.stack.embedded import Infrastructure
from onefold.stack.ports import free_ports
from tests.support.made_up_domain import MadeUp
from tests.support.sink_children import SinkOf
from tests.support.spark_cluster import NO_PYTHON, OPTIONS, PROTECTED, SPARK_HOME, SparkCluster, spark_cluster
from tests.support.told import asked, sums
from tests.support.waiting import eventually

# JVMs on cores that others use too.
SOON_S = 120.0
# Beyond the 30 s after which the sink says that no executor is there.
PATIENCE_S = 35.0


@pytest.fixture
def cluster(infrastructure: Infrastructure) -> Iterator[SparkCluster]:
    with spark_cluster(str(infrastructure.java.spark_home), PROTECTED) as made:
        yield made


@pytest.mark.spark
@pytest.mark.promise("spark-clusters")
def test_executors_need_only_spark_and_a_sink_without_executors_ends(
    cluster: SparkCluster, made_up: MadeUp, sink_of: SinkOf, database: str, tmp_path: Path
) -> None:
    """It goes on after kill -9 of an executor. Without workers, its status, its health and its metrics say so, and then it ends
    with the exit code of a service that is not there.
    """
    made_up.create_topics(partitions=2)
    made_up.send(range(100))
    port = free_ports(1)[0]
    child = sink_of(made_up.name, tmp_path)(
        spark={"master": cluster.master, "options": OPTIONS}, patience_s=PATIENCE_S, metrics_port=port, stall_s=120.0
    )
    eventually(lambda: made_up.is_landed(database), SOON_S, "executors take part in a batch")
    assert sums(port)["onefold_sink_executors"] == 2
    assert asked(port, "/healthz")[0] == 200
    executors_have_only_spark(cluster, tmp_path, database)

    cluster.executors()[0].kill()
    made_up.send(range(100, 200))
    eventually(lambda: made_up.is_landed(database), SOON_S, "the sink goes on after the kill of an executor")

    for name in ("worker-0", "worker-1"):
        cluster.kill(name)
    sentence = f"Spark has had no executors at {cluster.master} for 30 s"
    eventually(lambda: sentence in asked(port, "/healthz")[1], SOON_S, "its health says that no executor is there")
    assert asked(port, "/healthz")[0] == 503
    assert sums(port)["onefold_sink_executors"] == 0
    assert (child.status()["state"], child.status()["detail"]) == ("waiting", sentence)
    assert child.process.wait(SOON_S) == UNAVAILABLE
    assert f"gave up after {PATIENCE_S:.0f} s: {sentence}" in child.status()["detail"]


def executors_have_only_spark(cluster: SparkCluster, home: Path, dsn: str) -> None:
    """No variable of the sink, no Python, no file of this user but Spark's, and no secret among the arguments."""
    for executor in cluster.executors():
        environment, arguments = executor.environ(), " ".join(executor.cmdline())
        assert not [name for name in environment if name.startswith(("ONEFOLD_", "PG", "PYTHONPATH"))]
        assert environment["PYSPARK_PYTHON"] == NO_PYTHON
        assert not executor.children()
        assert "-XX:+UseParallelGC" in arguments
        for text in (*environment.values(), arguments):
            assert dsn not in text
            assert str(home) not in text
        archives = {file.path for file in executor.open_files() if file.path.endswith(".jar")}
        connector = {path for path in archives if not Path(path).is_relative_to(SPARK_HOME)}
        assert connector, "the connector came from the driver"
        assert all(Path(path).is_relative_to(cluster.folder) for path in connector), connector
        if os.geteuid() == 0:
            assert executor.uids().real != 0
