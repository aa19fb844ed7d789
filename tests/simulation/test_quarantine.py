"""One record that kills the process must not kill it for ever, and must not take its neighbours along."""

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor import tasks
from onefold.processor.core.errors import Abortable
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Event
from onefold.processor.loading import topology_of
from onefold.processor.runtime.batch_limit import TRIES_MAX, Quarantine
from onefold.processor.testing import Crash, SimulatedSession, TopologyDriver
from tests.support.clock import Clock
from tests.support.tasks import elastic_task

pytestmark = pytest.mark.promise("crashing-records")

RUNNER = topology_of("runner")
POISON = 666


def killed_by_poison(state: Any, event: Event) -> tuple[Any, Any]:
    """A handler with a bug that ends the process."""
    if event.value.distance_meters == POISON:
        raise Crash("segmentation fault")
    return RUNNER.handle(state, event)


def driver_with(*distances: int) -> TopologyDriver:
    driver = TopologyDriver(dataclasses.replace(RUNNER, handle=killed_by_poison))
    for number, distance in enumerate(distances, 1):
        value = {"user_id": 1, "distance_meters": distance, "timestamp_utc": number, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", value)
    return driver


@pytest.mark.parametrize("before", [0, 1, 7])
def test_the_third_crash_at_one_record_alone_sets_it_aside(before: int) -> None:
    """It becomes a dead letter that says why; the records around it are folded as if it had never been there."""
    driver = driver_with(*[10] * before, POISON, *[10] * 5)
    driver.run()

    (letter,) = driver.records("runner.updates.dead")
    assert b"runner.updates/0/%d" % before == letter[2]["onefold-source"]
    assert b"crashed 3 times" in (letter[2]["onefold-reason"] or b"")
    assert driver.restarts == 2 + TRIES_MAX
    assert 10 * (before + 5) == driver.table("runner.stats")[1, 1]["total_meters"]


def test_two_poisonous_records_are_both_set_aside() -> None:
    """One after the other; the first does not count for the second."""
    driver = driver_with(10, POISON, 10, POISON, 10)
    driver.run()

    assert sorted(headers["onefold-source"] or b"" for _, _, headers in driver.records("runner.updates.dead")) == [
        b"runner.updates/0/1",
        b"runner.updates/0/3",
    ]
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30


@pytest.mark.parametrize("step", ["after_begin", "before_commit", "after_restore"])
def test_kills_from_outside_set_nothing_aside(step: str) -> None:
    """A hundred kills at arbitrary moments are no reason to give a record up."""
    driver = driver_with(10)
    for number in range(2, 102):
        value = {"user_id": 1, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", value)
        driver.kill()
        driver.crash_at(step, 1 + number % 2)
        driver.run()

    assert driver.restarts >= 50
    assert driver.records("runner.updates.dead") == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 1010


class DeadlyLock(AbstractContextManager[None]):
    """Of a process in which another task's record is deadly: that one has its turn before ours, or right after it."""

    def __init__(self, turn: str) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        if self._turn == "before":
            raise Crash("another task")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._turn == "after":
            raise Crash("another task")


@pytest.mark.parametrize("turn", ["before", "after"])
def test_the_crash_of_another_task_is_not_counted(turn: str) -> None:
    """Tasks of one process crash together. Only the record that was being tried may be blamed for it."""
    driver = driver_with(*[10] * 9)
    for _ in range(2 * TRIES_MAX + 2):
        session = SimulatedSession(driver.log, RUNNER, 0)
        task = elastic_task(RUNNER, session, driver.codec, compute_lock=DeadlyLock(turn), clock=Clock())
        task.open()
        with pytest.raises(Crash):
            task.turn()
    driver.run()

    assert driver.records("runner.updates.dead") == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 90


class Life:
    """A task at level 2, whose transactions end in `fault` right before their commit: so many of those with a record, and
    with each one as many as make a `row`.
    """

    def __init__(self, driver: TopologyDriver, fault: BaseException, times: int, row: int = 1) -> None:
        self._fault = fault
        self._times = times
        self._row = row
        self._due = 0
        topology = dataclasses.replace(RUNNER, handle=self._handle)
        self.task = elastic_task(
            topology, SimulatedSession(driver.log, topology, 0), driver.codec, self._step, clock=Clock()
        )
        while self.task.quarantine.level < 2:
            self.task.open()

    def _handle(self, state: Any, event: Event) -> tuple[Any, Any]:
        if self._times:
            self._due, self._times = self._row, self._times - 1
        return RUNNER.handle(state, event)

    def _step(self, name: str) -> None:
        if name == "before_commit" and self._due:
            self._due -= 1
            raise self._fault


@pytest.mark.parametrize("row", [1, 2], ids=["the record's", "and the next, by which the note is taken back"])
@pytest.mark.parametrize("crashes", range(TRIES_MAX))
def test_a_transaction_that_is_aborted_is_no_crash(crashes: int, row: int) -> None:
    """The same record comes again in the same life, and the crashes before it stay as many as they were."""
    driver = driver_with(10)
    for _ in range(crashes):
        with pytest.raises(Crash):
            Life(driver, Crash("killed"), 1).task.turn()
    task = Life(driver, Abortable(Code.TRANSACTION_LOST, "lost"), TRIES_MAX, row).task
    for _ in range(TRIES_MAX):
        with pytest.raises(Abortable):
            task.turn()
        assert task.quarantine.tries == crashes
    assert task.turn() == 1

    assert driver.records("runner.updates.dead") == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 10


def test_a_crash_after_an_aborted_transaction_is_not_counted() -> None:
    """Until the record is tried again somebody else may have crashed the process."""
    driver = driver_with(10)
    for _ in range(2 * TRIES_MAX):
        with pytest.raises(Abortable):
            Life(driver, Abortable(Code.TRANSACTION_LOST, "lost"), 1).task.turn()
    driver.run()

    assert driver.records("runner.updates.dead") == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 10


def test_the_tasks_of_a_process_have_one_compute_lock_and_one_admin_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps them apart is one and the same for all of them; a client for each would be threads and connections for each."""
    driver = driver_with(10)
    admin: Any = object()
    given: list[Any] = []

    def session(topology: Topology, at: int, client: Any, **more: Any) -> SimulatedSession:
        given.append(more["admin"])
        return SimulatedSession(driver.log, topology, at)

    monkeypatch.setattr(tasks, "KafkaSession", session)
    made = tasks.Tasks(RUNNER, lambda: driver.codec, {}, admin, "one", 2, 1, tasks.IN_MEMORY)
    one, other = made.make(0, lambda: None), made.make(1, lambda: None)

    assert one._compute_lock is other._compute_lock
    assert not isinstance(one._compute_lock, nullcontext)
    assert given == [admin, admin]


def test_the_quarantine_ends_when_all_is_well() -> None:
    """After a quiet moment the next owner folds large batches again."""
    driver = driver_with(10)
    driver.crash_at("before_commit", 2)
    driver.run()

    assert driver.restarts == 1
    assert Quarantine() == driver.task().quarantine


def test_a_task_that_ends_in_good_order_leaves_no_quarantine() -> None:
    """A restart is not a crash."""
    driver = driver_with(10)
    driver.task()
    driver.stop()

    assert driver.task().quarantine.level == 0
