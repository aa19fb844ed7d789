"""A replica that restores beside others rests half of the time, and not at all where nobody decides."""

import threading
import time
from functools import partial
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor import service
from onefold.processor.core.abc import Identity
from onefold.processor.core.errors import Retriable
from onefold.processor.kept import IN_MEMORY, keeping
from onefold.processor.runtime import giving_way
from onefold.processor.runtime.giving_way import ASK_EVERY_S, RECORDS, REST_MAX_S, GivesWay
from onefold.processor.runtime.retention import Retention
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.log import SimulatedLog
from onefold.processor.testing.session import SimulatedInputs, SimulatedSession
from tests.support.replicas import RUNNER, Replicas, update


class Process:
    """It reads records, each of which takes some time, and rests."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rested: list[float] = []
        self.beats = 0
        self.lock = threading.Lock()
        self.gives_way = GivesWay(self.lock, lambda: self.now, self.rest)
        self.log = SimulatedLog()
        self.log.create(RUNNER.decisions, 1)

    def rest(self, seconds: float) -> None:
        assert self.lock.locked(), "and its other tasks wait as well"
        self.rested.append(seconds)
        self.now += seconds

    def beat(self) -> None:
        self.beats += 1

    def decided(self) -> None:
        self.log.append(RUNNER.decisions, None, b"decision", partition=0)

    def task(self) -> Any:
        return self.gives_way.beside(SimulatedDecisionLog(self.log, RUNNER.decisions, 0), self.beat)

    def reads(self, task: Any, records: int = RECORDS, one_s: float = 0.000004) -> None:
        for _ in range(records):
            self.now += one_s
            task()


def test_it_rests_for_as_long_as_it_has_read() -> None:
    process = Process()
    task = process.task()
    process.reads(task, RECORDS - 1)
    assert process.rested == []
    process.reads(task, 1 + 2 * RECORDS)
    assert process.rested == pytest.approx([RECORDS * 0.000004] * 3)
    assert process.beats == 3 * RECORDS, "and whoever watches sees each record"


def test_who_has_waited_for_records_has_rested() -> None:
    process = Process()
    process.reads(process.task(), one_s=0.01)
    assert process.rested == [REST_MAX_S]


def test_the_tasks_of_a_process_rest_together() -> None:
    """Else two of them would use all of a core."""
    process = Process()
    one, other = process.task(), process.task()
    process.reads(one, RECORDS - 1)
    process.reads(other, RECORDS)
    process.reads(one, 1)
    assert process.rested == pytest.approx([RECORDS * 0.000004] * 2)


def test_where_nobody_decides_nobody_rests() -> None:
    """All replicas begin at once, or nothing comes in."""
    process = Process()
    task = process.task()
    process.reads(task)
    process.now += ASK_EVERY_S
    process.reads(task, 3 * RECORDS)
    assert len(process.rested) == 1, "by then it has seen that the log stands still"
    process.decided()
    process.reads(task, RECORDS)
    assert len(process.rested) == 1, "and does not ask about each record"
    process.now += ASK_EVERY_S
    process.reads(task, 2 * RECORDS)
    assert len(process.rested) == 3


def test_a_log_that_does_not_answer_ends_no_restore() -> None:
    """It is only asked whether to rest."""

    class Away(SimulatedDecisionLog):
        def identity(self) -> Identity:
            raise Retriable(Code.KAFKA_SILENT, "no broker answers")

    process = Process()
    task = process.gives_way.beside(Away(process.log, RUNNER.decisions, 0), process.beat)
    process.reads(task, 2 * RECORDS)
    assert process.rested == []
    assert process.beats == 2 * RECORDS


def test_while_one_task_rests_no_other_one_reads() -> None:
    process = Process()
    one, other = process.task(), process.task()
    reading = threading.Event()
    read = threading.Event()

    def meanwhile() -> None:
        reading.set()
        other()
        read.set()

    def rest(seconds: float) -> None:
        process.rested.append(seconds)
        thread.start()
        reading.wait(10)
        assert not read.wait(0.05)

    thread = threading.Thread(target=meanwhile)
    process.gives_way._sleep = rest
    process.reads(one)
    thread.join(10)
    assert len(process.rested) == 1
    assert read.is_set()


def test_replicas_give_way_while_they_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks of a process with one another, and no more when they run."""
    world = Replicas(RUNNER)
    for number in range(1, 6):
        world.driver.send("runner.updates", update(number, 1))
    world.drain()
    monkeypatch.setattr(
        service, "KafkaDecisionLog", lambda topic, at, client: SimulatedDecisionLog(world.log, topic, 0)
    )
    monkeypatch.setattr(
        service, "KafkaSession", lambda topology, at, client, **_: SimulatedSession(world.log, topology, 0)
    )
    monkeypatch.setattr(
        service, "KafkaInputs", lambda topology, at, client, **_: SimulatedInputs(world.log, topology, 0)
    )
    monkeypatch.setattr(giving_way, "RECORDS", 1)
    monkeypatch.setattr(giving_way, "ASK_EVERY_S", 3600.0)
    rested: list[float] = []
    monkeypatch.setattr(time, "sleep", rested.append)
    made: list[GivesWay] = []

    class Made(GivesWay):
        def __init__(self, *others: Any) -> None:
            super().__init__(*others)
            made.append(self)

    monkeypatch.setattr(service, "GivesWay", Made)
    client = {"bootstrap.servers": "127.0.0.1:1"}
    keep = partial(keeping, IN_MEMORY, 2, 2, lambda name: None)
    make = service._replicas(
        RUNNER,
        lambda: world.driver.codec,
        client,
        "c",
        lambda name: None,
        lambda at: Retention(None, clock=world.clock),
        keep,
    )
    for at in (0, 1):
        before = len(rested)
        replica = make(at, lambda: None)._replica
        replica.open()
        restored = len(rested)
        assert restored - before >= len(replica.store) == 5
        replica.turn()
        assert len(rested) == restored
        replica.close()
    assert len(made) == 1
