"""The tasks of an instance: which are started, which are left alone, and what stopping them means."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from structlog.testing import capture_logs

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import Fenced, Refused
from onefold.processor.core.values import Record
from onefold.processor.io.all_tasks import EveryTask
from onefold.processor.io.group_membership import Membership
from onefold.processor.loading import topology_of
from onefold.processor.runtime.loop import Phase
from onefold.processor.runtime.pool import FENCED_PAUSE_S, STOP_TIMEOUT_S, TaskPool
from onefold.processor.runtime.task import Task
from onefold.processor.testing import SimulatedSession, TopologyDriver
from tests.support.clock import Clock
from tests.support.coded import raises
from tests.support.tasks import elastic_task
from tests.support.waiting import eventually

RUNNER = topology_of("runner")
PARTITIONS = 4


class Passing(Clock):
    """Seconds that pass with each look at it."""

    step_s = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


class Tasks:
    """A pool of simulated tasks, each with a log of its own, and what was done with them."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.troubles: list[Exception] = []
        self.nothing_comes = threading.Event()
        self.may_open, self.may_close = threading.Event(), threading.Event()
        self.may_open.set()
        self.may_close.set()
        self.close_together: threading.Barrier | None = None
        self.clock = Passing()
        self.pool = TaskPool(self._make, clock=self.clock)

    def _make(self, partition: int, beat: Any) -> Task:
        tasks, driver = self, TopologyDriver(RUNNER, partitions=PARTITIONS)

        class Session(SimulatedSession):
            def open(self) -> None:
                tasks.opened.append(partition)
                tasks.may_open.wait(60)
                super().open()
                if tasks.troubles:
                    raise tasks.troubles.pop(0)

            def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
                tasks.nothing_comes.wait(0.01)
                return super().poll(count_max, timeout_s)

            def close(self) -> None:
                tasks.may_close.wait(60)
                if tasks.close_together is not None:
                    tasks.close_together.wait()
                super().close()
                tasks.closed.append(partition)

        return elastic_task(RUNNER, Session(driver.log, RUNNER, partition), driver.codec, beat=beat, clock=self.clock)

    def run(self, *partitions: int) -> None:
        """Until these run, and nothing else."""
        eventually(lambda: {at for _, at in self.pool.offsets_next()} == set(partitions), 10, f"{partitions} run")
        assert self.pool.summary() == (Phase.RUNNING, f"{len(partitions)} tasks, states in memory (as set)")


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    """Ended when the test ends."""
    made = Tasks()
    yield made
    made.may_open.set()
    made.may_close.set()
    made.pool.stop_all()


class Assignment:
    """A consumer as far as the group's callbacks need one."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """More of them."""
        self.partitions |= {at.partition for at in partitions}

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Its records are read by the tasks."""
        assert self.partitions >= {at.partition for at in partitions}


@pytest.mark.slow  # librdkafka takes 5 s to end a consumer that has no broker
def test_a_rebalance_leaves_the_tasks_that_stay_alone(tasks: Tasks) -> None:
    """Some go, none come, some come back: those that were here all the time were opened once, and never closed."""
    member = Membership(RUNNER, {"bootstrap.servers": "127.0.0.1:9"}, "a", tasks.pool.start, tasks.pool.stop)
    consumer: Any = Assignment()

    def at(*partitions: int) -> list[TopicPartition]:
        return [TopicPartition(RUNNER.inputs[0], partition) for partition in partitions]

    member._on_assign(consumer, at(0, 1, 2, 3))
    tasks.run(0, 1, 2, 3)
    member._on_revoke(consumer, at(2, 3))
    assert sorted(tasks.closed) == [2, 3], "closed before the group hears of it"
    member._on_assign(consumer, at())
    member._on_assign(consumer, at(3))
    tasks.run(0, 1, 3)

    assert consumer.partitions == {0, 1, 2, 3}
    assert sorted(tasks.opened) == [0, 1, 2, 3, 3]
    assert sorted(tasks.closed) == [2, 3]


def test_what_runs_is_not_started_again(tasks: Tasks) -> None:
    """A group may name a partition again that it never took away."""
    tasks.pool.start([0, 1])
    tasks.run(0, 1)
    tasks.pool.start([0, 1, 2])
    tasks.run(0, 1, 2)

    assert sorted(tasks.opened) == [0, 1, 2]
    assert tasks.closed == []


def test_stop_asks_all_of_them_and_then_waits_for_each(tasks: Tasks) -> None:
    """When it returns, the partitions are somebody else's: nobody is in the middle of a transaction."""
    tasks.pool.start([0, 1, 2])
    tasks.run(0, 1, 2)
    tasks.close_together = threading.Barrier(2, timeout=5)  # side by side, not one after the other
    tasks.pool.stop([0, 1, 7])

    assert sorted(tasks.closed) == [0, 1]
    tasks.close_together = None
    tasks.run(2)


def test_a_task_that_does_not_end_is_left_behind(tasks: Tasks) -> None:
    """The group waits no longer than that; its successor fences it."""
    tasks.pool.start([0])
    tasks.run(0)
    tasks.may_close.clear()
    tasks.clock.step_s = STOP_TIMEOUT_S - 0.05
    with capture_logs() as said:
        tasks.pool.stop([0])

    assert [(line["event"], line["partition"]) for line in said if line["log_level"] == "warning"] == [
        ("task did not end in time; its successor fences it", 0)
    ]
    assert tasks.closed == []
    assert tasks.pool.offsets_next() == {}


def test_a_fenced_task_that_is_still_ours_begins_again_after_a_pause(tasks: Tasks) -> None:
    """Not at once, which could fence the successor in turn; each time anew; and the others go on."""
    tasks.pool.start([0])
    tasks.run(0)
    tasks.troubles.append(Fenced(Code.FENCED, "another owner"))
    tasks.pool.start([1])
    eventually(lambda: tasks.pool._loops[1].fenced, 10, "fenced")
    tasks.pool.check()
    tasks.clock.now += FENCED_PAUSE_S
    tasks.pool.check()
    assert tasks.opened == [0, 1]

    tasks.troubles.append(Fenced(Code.FENCED, "another owner"))
    tasks.clock.now += 0.01
    tasks.pool.check()
    eventually(lambda: tasks.opened == [0, 1, 1] and tasks.pool._loops[1].fenced, 10, "fenced again")
    tasks.pool.check()
    assert tasks.opened == [0, 1, 1]
    tasks.clock.now += 2 * FENCED_PAUSE_S
    tasks.pool.check()
    tasks.run(0, 1)
    assert tasks.opened == [0, 1, 1, 1]


def test_a_fenced_task_that_was_taken_away_does_not_come_back(tasks: Tasks) -> None:
    """And when the partition is given to us once more, its pause is not over by what was before."""
    for _ in range(2):
        tasks.troubles.append(Fenced(Code.FENCED, "another owner"))
        tasks.pool.start([1])
        eventually(lambda: tasks.pool._loops[1].fenced, 10, "fenced")
        tasks.pool.check()
        assert tasks.opened[1:] in ([], [1])
        tasks.clock.now += 2 * FENCED_PAUSE_S
        tasks.pool.stop([1])
        tasks.pool.check()

    assert tasks.opened == [1, 1]


def test_what_a_task_cannot_go_on_from_is_raised(tasks: Tasks) -> None:
    """In the thread that asks."""
    tasks.troubles.append(Refused(Code.TOPIC_RECREATED, "not the log it was"))
    tasks.pool.start([0])
    eventually(lambda: tasks.pool._loops[0].failure, 10, "refused")

    with raises(Refused, Code.TOPIC_RECREATED):
        tasks.pool.check()


def test_a_task_that_hangs_is_seen_and_one_that_has_ended_is_not(tasks: Tasks) -> None:
    """The watchdog's question: how long the quietest of those was silent that should work."""
    tasks.may_open.clear()
    tasks.troubles.append(Fenced(Code.FENCED, "another owner"))
    tasks.pool.start([0])
    eventually(lambda: tasks.opened, 10, "it opens")
    tasks.clock.now += 50
    assert tasks.pool.silent_for_s() == pytest.approx(50)
    assert tasks.pool.summary() == (Phase.RESTORING, "task 0 is restoring")

    tasks.may_open.set()
    eventually(lambda: tasks.pool._loops[0].fenced, 10, "fenced")
    assert tasks.pool.silent_for_s() == 0
    assert tasks.pool.summary() == (Phase.WAITING, "another owner")


def test_without_a_group_an_instance_has_every_task_from_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; after that there is only to wait, which whoever runs the instance may end early."""
    given: list[list[int]] = []
    waited: list[float] = []
    seen = Seen()
    monkeypatch.setattr(kafka_client, "member", lambda settings: seen)
    monkeypatch.setattr(kafka_client, "leave", Seen.leave)
    assignment = EveryTask(RUNNER, {}, "a", 3, given.append, waited.append, session_timeout_ms=6_000)
    assert not assignment.assigned_once
    for _ in range(3):
        assignment.poll(0.25)
        assert assignment.assigned_once

    assert given == [[0, 1, 2]]
    assert waited == [0.25, 0.25]
    assignment.close()
    assert seen.heard == ["subscribe", *["poll"] * 3, "leave"]


class Seen:
    """A consumer that remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def subscribe(self, topics: list[str], on_assign: object) -> None:
        self.heard.append("subscribe")

    def poll(self, timeout_s: float) -> None:
        self.heard.append("poll")

    def leave(self) -> None:
        self.heard.append("leave")
