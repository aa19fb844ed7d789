"""What the tasks tell: how much they have done, and whether they get on."""

import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Abortable, Retriable
from onefold.processor.core.values import Event
from onefold.processor.loading import topology_of
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.pool import TaskPool
from onefold.processor.runtime.publishing import Publishing
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.task_metrics import Figures
from onefold.processor.testing import SimulatedSession, TopologyDriver
from onefold.telemetry import ABORTED, DEAD_LETTERS, RECORDS, STARTED_OVER, TRANSACTIONS, WRITTEN
from tests.support.clock import Clock
from tests.support.replicas import Replicas
from tests.support.tasks import elastic_task
from tests.support.told import Kept
from tests.support.waiting import eventually

RUNNER = topology_of("runner")


def update(number: int) -> dict[str, int]:
    return {"user_id": 1, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


class Site:
    """One task in a pool, whose commits fail, or whose handler hangs, as a test says."""

    def __init__(self) -> None:
        self.driver = TopologyDriver(RUNNER)
        self.told = Kept()
        self.clock = Clock()
        self.trouble: Exception | None = None
        self.goes_on, self.hangs = threading.Event(), threading.Event()
        self.goes_on.set()
        self.tried = 0
        self.pool = TaskPool(self._make, clock=self.clock, figures=Figures(self.told, "runner"))
        self._sent = 0

    def _make(self, partition: int, beat: Any) -> Task:
        def step(name: str) -> None:
            if name == "before_commit" and self.trouble is not None:
                self.tried += 1
                raise self.trouble

        def handle(state: Any, event: Event) -> Any:
            if not self.goes_on.is_set():
                self.hangs.set()
            self.goes_on.wait(60)
            return RUNNER.handle(state, event)

        topology = dataclasses.replace(RUNNER, handle=handle)
        session = SimulatedSession(self.driver.log, topology, partition)
        return elastic_task(topology, session, self.driver.codec, step, beat, check_every_s=0, clock=self.clock)

    def send(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            self.driver.send("runner.updates", update(self._sent))

    def turned(self) -> None:
        """Wait until it has looked again, at what the clock says now."""
        eventually(lambda: self.pool.silent_for_s() == 0, 10, "it turns")

    def end(self) -> int:
        return self.driver.log.identity("runner.updates", 0).end

    def drained(self) -> None:
        at = {("runner.updates", 0): self.end()}
        eventually(lambda: self.pool.offsets_next() == at and self.pool.lag() == 0, 10, "everything is folded")


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    made.pool.start([0])
    yield made
    made.goes_on.set()
    made.trouble = None
    made.pool.stop_all()


def quiet_s(site: Site) -> float:
    return site.clock.now - site.pool.quietest()[0]


def test_what_was_done_is_told_once(site: Site) -> None:
    """Records, transactions, what they wrote, and dead letters among it."""
    site.send(3)
    site.driver.send("runner.updates", b"not JSON")
    site.drained()
    eventually(lambda: site.told.counted[RECORDS] == 4, 10, "it is told")
    told = site.told
    written = sum(len(site.driver.records(topic)) for topic in (*RUNNER.outputs, *RUNNER.dead.values()))
    assert (told.counted[DEAD_LETTERS], told.counted[WRITTEN]) == (1, written)
    assert len(told.durations) == told.counted[TRANSACTIONS] >= 1
    assert (told.counted[ABORTED], told.counted[STARTED_OVER]) == (0, 0)


def test_who_has_nothing_to_do_is_well(site: Site) -> None:
    """For as long as that may be."""
    site.drained()
    site.clock.now += 1e6
    eventually(lambda: quiet_s(site) < 1, 10, "it has looked again")


def test_a_handler_that_hangs_is_no_progress(site: Site) -> None:
    """Nothing is raised, nothing ends, and the process is alive."""
    site.drained()
    site.goes_on.clear()
    site.send(1)
    assert site.hangs.wait(10)
    site.clock.now += 100
    assert quiet_s(site) == 100
    site.goes_on.set()
    eventually(lambda: quiet_s(site) < 1, 10, "it goes on")


def test_trying_again_and_again_is_no_progress(site: Site) -> None:
    """Every turn of it is a sign of life, and none is one of progress."""
    site.drained()
    site.trouble = Abortable(Code.TRANSACTION_LOST, "lost")
    site.send(2)
    eventually(lambda: site.told.counted[ABORTED] > 1, 10, "it is aborted")
    began_at = site.pool.quietest()[0]
    site.clock.now += 100
    tried = site.tried
    eventually(lambda: site.tried > tried, 10, "it is tried again")
    assert site.pool.quietest()[0] == began_at
    assert site.pool.quietest()[1].endswith(": lost")
    site.trouble = Retriable(Code.KAFKA_SILENT, "Kafka is away")
    eventually(lambda: site.told.counted[STARTED_OVER] > 0, 10, "it starts over")
    assert quiet_s(site) >= 100
    site.trouble = None
    site.drained()
    eventually(lambda: quiet_s(site) < 1, 10, "it goes on")


def test_an_input_whose_end_cannot_be_read_is_not_drained(site: Site) -> None:
    """Somebody's open transaction holds it back: every turn goes well, and none finds anything."""
    site.drained()
    log = site.driver.log
    epoch = log.init("somebody")
    log.write("somebody", epoch, "runner.updates", 0, b"1", json.dumps(update(1)).encode(), ())
    eventually(lambda: site.pool.lag() == 1, 10, "it knows that something is there")
    moved_at = site.pool.quietest()[0]
    site.clock.now += 100
    site.turned()
    assert site.pool.quietest() == (moved_at, "task 0 is running, 1 offsets wait")
    log.end("somebody", epoch, commit=True)
    eventually(lambda: quiet_s(site) < 1, 10, "it goes on")


def test_of_a_replica_nothing_has_moved_before_it_is_published() -> None:
    """Decisions go on, and no reader of a topic sees any of them."""
    world, told = Replicas(RUNNER), Kept()
    late = world.members["b"]

    def publishing(decider: LogDecider) -> Publishing:
        return Publishing(decider, lambda: world.publisher(late), 1e9, clock=world.clock)

    def make(partition: int, beat: Any) -> Task:
        return world.replica(late, beat=beat, publishing=publishing)

    pool = TaskPool(make, clock=world.clock, figures=Figures(told, "runner"))
    pool.start([0])
    try:
        world.driver.send("runner.updates", update(1))
        eventually(lambda: told.counted[TRANSACTIONS] > 0, 10, "it is decided")
        decided_at = world.now
        world.now += 100
        world.driver.send("runner.updates", update(2))
        eventually(lambda: told.counted[RECORDS] == 2, 10, "the next one is decided too")
        eventually(lambda: pool.quietest()[0] <= decided_at, 10, "it has not moved")
    finally:
        pool.stop_all()
