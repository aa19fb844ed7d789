"""A sink with executors on a standalone cluster of Spark: they have nothing but Spark, and the sink says it if none is left."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from onefold.exit_codes import UNAVAILABLE
from onefold.spark_sink.spark.cluster import NONE_FOR_S
from onefold.stack.embedded import Infrastructure
from onefold.stack.ports import free_ports
from tests.support.made_up_domain import MadeUp
from tests.support.sink_children import SinkOf
from tests.support.spark_cluster import NO_PYTHON, OPTIONS, PROTECTED, SPARK_HOME, SparkCluster, spark_cluster
from tests.support.told import asked, sums
from tests.support.waiting import eventually

# JVMs on cores that others use too. The sink loses patience no sooner.
SOON_S = 300.0


@pytest.fixture
def cluster(infrastructure: Infrastructure) -> Iterator[SparkCluster]:
    with spark_cluster(str(infrastructure.java.spark_home), PROTECTED) as made:
        yield made


@pytest.mark.spark
@pytest.mark.promise("spark-clusters")
def test_executors_need_only_spark_and_may_be_killed(
    cluster: SparkCluster, made_up: MadeUp, sink_of: SinkOf, database: str, tmp_path: Path
) -> None:
    """It goes on after kill -9 of an executor, and says so when no executor is left."""
    made_up.create_topics(partitions=2)
    made_up.send(range(100))
    port = free_ports(1)[0]
    child = sink_of(made_up.name, tmp_path)(
        spark={"master": cluster.master, "options": OPTIONS}, patience_s=SOON_S, metrics_port=port, stall_s=SOON_S
    )
    eventually(lambda: made_up.is_landed(database), SOON_S, "executors take part in a batch")
    eventually(lambda: sums(port)["onefold_sink_executors"] == 2, SOON_S, "two executors")
    eventually(lambda: asked(port, "/healthz")[0] == 200, SOON_S, "the sink is healthy")
    executors_have_only_spark(cluster, tmp_path, database)

    cluster.executors()[0].kill()
    made_up.send(range(100, 200))
    eventually(lambda: made_up.is_landed(database), SOON_S, "the sink goes on after the kill of an executor")

    executors = cluster.executors()
    for name in ("worker-0", "worker-1"):
        cluster.kill(name)
    for executor in executors:  # the one that takes the killed one's place outlives its worker while it starts
        with suppress(psutil.NoSuchProcess):
            executor.kill()
    sentence = f"Spark has had no executors at {cluster.master} for 30 s"
    eventually(lambda: sentence in asked(port, "/healthz")[1], SOON_S, "its health says that no executor is there")
    assert asked(port, "/healthz")[0] == 503
    assert sums(port)["onefold_sink_executors"] == 0
    eventually(
        lambda: (child.status()["state"], child.status()["detail"]) == ("waiting", sentence),
        SOON_S,
        "so does its status",
    )


@pytest.mark.spark
@pytest.mark.long  # 60 s, of which 35 are the sink's patience
@pytest.mark.promise("spark-clusters")
def test_a_sink_that_gets_no_executors_ends(
    infrastructure: Infrastructure, made_up: MadeUp, sink_of: SinkOf, tmp_path: Path
) -> None:
    """With the exit code of a service that is not there. The cluster has no worker."""
    made_up.create_topics(partitions=2)
    made_up.send(range(10))
    patience_s = NONE_FOR_S + 5
    with spark_cluster(str(infrastructure.java.spark_home), PROTECTED, workers=0) as cluster:
        spark = {"master": cluster.master, "options": OPTIONS}
        child = sink_of(made_up.name, tmp_path)(spark=spark, patience_s=patience_s)
        assert child.process.wait(SOON_S) == UNAVAILABLE
    sentence = f"gave up after {patience_s:.0f} s: Spark has had no executors at {cluster.master} for 30 s"
    assert sentence in child.log.read_text(encoding="utf-8")


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
