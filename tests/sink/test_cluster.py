"""Executors of Spark that are gone, and masters that come back: said, waited for, and given up. Without Spark."""

import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.spark import cluster as module
from onefold.spark_sink.spark.cluster import NONE_FOR_S, Cluster
from onefold.telemetry import EXECUTORS
from tests.support.coded import raises
from tests.support.told import Kept

PATIENCE_S = 120.0


class Session:
    """A session with so many executors; `jobs` are those that wait for one."""

    def __init__(self, master: str, executors: int, dynamic: bool = False) -> None:
        self.executors, self.jobs, self.stopped = executors, list[int](), False
        tracker = SimpleNamespace(getExecutorInfos=lambda: range(1 + self.executors))
        in_java = SimpleNamespace(isStopped=lambda: self.stopped, statusTracker=lambda: tracker)
        self.sparkContext = SimpleNamespace(
            master=master,
            _jsc=SimpleNamespace(sc=lambda: in_java),
            getConf=lambda: {"spark.dynamicAllocation.enabled": "true"} if dynamic else {},
            statusTracker=lambda: SimpleNamespace(getActiveJobsIds=lambda: self.jobs),
        )

    def stop(self) -> None:
        self.stopped = True


class World:
    """A cluster whose master listens as long as it lives."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told = Kept()
        self.sessions: list[Session] = []
        self.executors = 2
        self.dynamic = False
        self.start_s = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.master = f"spark://127.0.0.1:{self._listener.getsockname()[1]}"

    def cluster(self, master: str = "") -> Cluster:
        self.master = master or self.master
        return Cluster(self.start, self.master, self.told, PATIENCE_S, lambda: self.now)

    def start(self) -> Any:
        self.now += self.start_s
        self.sessions.append(Session(self.master, self.executors, self.dynamic))
        return self.sessions[-1]

    def kill_master(self) -> None:
        self._listener.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World()) as made:
        yield made


def session(cluster: Cluster) -> Any:
    return cluster.session()


def after(world: World, cluster: Cluster, seconds: float) -> str:
    """What is said then; the cluster is looked at each second."""
    said = ""
    for _ in range(round(seconds)):
        world.now += 1
        said = cluster.trouble()
    return said


def test_a_cluster_with_executors_is_well(world: World) -> None:
    cluster = world.cluster()
    assert after(world, cluster, 300) == ""
    assert session(cluster) is world.sessions[0]
    assert world.told.gauges == {EXECUTORS: 2}
    assert world.told.wrong == {}


@pytest.mark.promise("spark-clusters")
def test_executors_that_are_gone_are_said_after_30_seconds_and_given_up_after_the_patience(world: World) -> None:
    """In the status, in the health and by a metric."""
    cluster = world.cluster("yarn")
    after(world, cluster, 10)
    world.sessions[0].executors = 0
    assert after(world, cluster, NONE_FOR_S - 4) == ""
    assert world.told.gauges == {EXECUTORS: 0}
    sentence = "Spark has had no executors at yarn for 30 s"
    assert after(world, cluster, 6) == sentence
    assert world.told.wrong == {"Spark": sentence}
    with raises(Retriable, Code.GAVE_UP, f"gave up after 120 s: {sentence}"):
        after(world, cluster, PATIENCE_S)
    assert len(world.sessions) == 1, "yarn finds executors for the same application"


def test_a_driver_whose_jvm_has_ended_has_no_executors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query says why; here the look itself must not fail."""
    cluster = world.cluster("yarn")
    after(world, cluster, 10)

    def ended(session: object) -> bool:
        raise Py4JNetworkError("the JVM has ended")

    world.sessions[0].executors = 0
    monkeypatch.setattr(module, "_idles", ended)
    assert "no executors" in after(world, cluster, NONE_FOR_S + 4)


@pytest.mark.parametrize("master", ["spark://spark..master:7077", f"spark://{'a' * 70}:7077"])
def test_a_host_that_cannot_be_one_is_a_master_that_does_not_answer(world: World, master: str) -> None:
    assert "does not answer" in after(world, world.cluster(master), 10)


def test_executors_have_30_seconds_to_come_when_spark_has_started(world: World) -> None:
    world.executors, world.start_s = 0, 60.0
    cluster = world.cluster("k8s://https://127.0.0.1:6443")
    assert after(world, cluster, NONE_FOR_S - 4) == ""
    assert after(world, cluster, 6) != ""


def test_executors_that_come_back_end_the_trouble(world: World) -> None:
    cluster = world.cluster("yarn")
    after(world, cluster, 10)
    world.sessions[0].executors = 0
    assert after(world, cluster, 100) != ""
    world.sessions[0].executors = 1
    assert after(world, cluster, 3) == ""
    assert world.told.wrong == {"Spark": ""}
    world.sessions[0].executors = 0
    assert after(world, cluster, 100) != "", "the patience begins anew"


def test_a_master_that_does_not_know_the_application_any_more_gets_a_new_one(world: World) -> None:
    """As after a start without its state: it has ended the executors, and gives no others to the old application."""
    cluster = world.cluster()
    after(world, cluster, 10)
    world.sessions[0].executors = 0
    assert after(world, cluster, NONE_FOR_S + 4) == ""
    assert [session.stopped for session in world.sessions] == [True, False]
    assert session(cluster) is world.sessions[1]


def test_executors_that_are_slow_to_start_are_waited_for(world: World) -> None:
    """A new session would have to wait for them as long again."""
    world.executors = 0
    cluster = world.cluster()
    assert after(world, cluster, 100) == f"Spark has had no executors at {world.master} for 30 s"
    world.sessions[0].executors = 1
    assert after(world, cluster, 3) == ""
    assert len(world.sessions) == 1


def test_a_master_that_is_gone_is_said_at_once_and_found_again(world: World) -> None:
    """Before the first session, and after the executors have ended with it."""
    cluster = world.cluster()
    world.kill_master()
    sentence = f"the Spark master {world.master} does not answer"
    assert after(world, cluster, 1) == sentence
    with raises(Retriable, Code.NO_EXECUTORS, sentence):
        cluster.session()
    assert world.sessions == []
    port = int(world.master.rpartition(":")[2])
    with closing(socket.create_server(("127.0.0.1", port))):
        assert after(world, cluster, 6) == ""
    world.sessions[0].executors = 0
    assert after(world, cluster, NONE_FOR_S + 4) == sentence
    assert not world.sessions[0].stopped, "executors may run on without a master"
    with closing(socket.create_server(("127.0.0.1", port))):
        assert after(world, cluster, 5) == ""
    assert world.sessions[0].stopped
    assert session(cluster) is world.sessions[1]


def test_a_session_that_was_ended_has_no_executors(world: World) -> None:
    cluster = world.cluster()
    after(world, cluster, 10)
    world.sessions[0].stop()
    assert after(world, cluster, NONE_FOR_S + 4) == ""
    assert session(cluster) is world.sessions[1]


def test_a_cluster_that_takes_no_application_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = world.cluster("yarn")

    def refuse() -> Any:
        raise Retriable(Code.SPARK_NOT_STARTED, "Spark did not start: forbidden")

    monkeypatch.setattr(cluster, "_begin", refuse)
    assert after(world, cluster, 100) == "Spark did not start: forbidden"
    with raises(Retriable, Code.GAVE_UP, "gave up after 120 s: Spark did not start: forbidden"):
        after(world, cluster, 30)


def test_a_new_session_that_does_not_start_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = world.cluster()
    after(world, cluster, 10)
    world.sessions[0].executors = 0

    def refuse() -> Any:
        raise Retriable(Code.SPARK_NOT_STARTED, "Spark did not start: forbidden")

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "_begin", refuse)
        assert after(world, cluster, NONE_FOR_S + 4) == "Spark did not start: forbidden"
        with raises(Retriable, Code.NO_EXECUTORS, "Spark did not start: forbidden"):
            cluster.session()
    assert after(world, cluster, 3) == ""
    assert session(cluster) is world.sessions[1]


def test_executors_that_spark_has_given_back_are_missed_when_there_is_work(world: World) -> None:
    world.dynamic = True
    cluster = world.cluster("yarn")
    after(world, cluster, 10)
    world.sessions[0].executors = 0
    assert after(world, cluster, 300) == ""
    world.sessions[0].jobs = [1]
    assert after(world, cluster, NONE_FOR_S + 4) != ""


def test_a_local_master_is_its_own_executor(world: World) -> None:
    cluster = world.cluster("local[*]")
    world.executors = 0
    assert after(world, cluster, 300) == ""
    assert world.told.gauges == {EXECUTORS: 1}
