"""The life of a task in its thread: what happens next after each kind of error."""

import dataclasses
from typing import Any

import pytest

from processor.core.errors import Abortable, Corrupted, Fenced, Refused, Retriable
from processor.core.values import Event
from processor.runtime.loop import Phase, TaskLoop
from processor.runtime.task import Task
from processor.service import topology_of
from processor.testing import SimulatedSession, TopologyDriver
from tests.waiting import eventually

RUNNER = topology_of("runner")


def update(number: int, meters: int = 10) -> dict[str, int]:
    return {"user_id": 1, "distance_meters": meters, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


class Troubled(SimulatedSession):
    """Raises the given errors, one at each commit that is not the opening one, and then works."""

    troubles: list[Exception]

    def commit(self) -> None:
        if self.troubles and self._positions[RUNNER.inputs[0]]:
            raise self.troubles.pop(0)
        super().commit()


def loop_over(driver: TopologyDriver, troubles: list[Exception], topology: Any = RUNNER) -> TaskLoop:
    def make(beat: Any) -> Task:
        session = Troubled(driver.log, topology, 0)
        session.troubles = troubles
        return Task(topology, session, driver.codec, beat=beat)

    return TaskLoop(0, make)


@pytest.mark.parametrize("trouble", [Abortable("lost"), Retriable("not now"), Corrupted("who knows")])
def test_errors_that_can_be_recovered_from(trouble: Exception) -> None:
    """The same records are folded again, once; the loop goes on by itself."""
    driver = TopologyDriver(RUNNER)
    for number in range(1, 6):
        driver.send("runner.updates", update(number))
    loop = loop_over(driver, [trouble])
    loop.start()
    eventually(lambda: loop.offsets_next == {"runner.updates": 5}, 10, "all records are folded")
    loop.stop()

    assert loop.join(5)
    assert loop.failure is None
    assert [message["sequence_id"] for message in driver.read("runner.messages")] == [1, 2, 3, 4, 5]


def test_fenced_leaves_quietly() -> None:
    """No failure, and no second try of its own: the pool asks the group first."""
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", update(1))
    loop = loop_over(driver, [Fenced("another owner")])
    loop.start()

    assert loop.join(5)
    assert (loop.fenced, loop.failure, loop.phase) == (True, None, Phase.STOPPED)


@pytest.mark.parametrize("trouble", [Refused("not the log it was"), ValueError("a bug")])
def test_what_it_can_not_go_on_from_is_handed_to_the_main_thread(trouble: Exception) -> None:
    """A refusal and a bug alike; the main thread tells them apart."""
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", update(1))
    loop = loop_over(driver, [trouble])
    loop.start()

    assert loop.join(5)
    assert trouble is loop.failure


def test_a_handler_with_a_bug_costs_one_dead_letter() -> None:
    """An ordinary exception crashes the process, which is started again, and again; in the end the record is set aside."""

    def buggy(state: Any, event: Event) -> Any:
        if event.value.distance_meters == 666:
            raise ZeroDivisionError
        return RUNNER.handle(state, event)

    topology = dataclasses.replace(RUNNER, handle=buggy)
    driver = TopologyDriver(RUNNER)
    for number, meters in enumerate((10, 10, 666, 10), 1):
        driver.send("runner.updates", update(number, meters))
    crashes = 0
    while True:
        loop = loop_over(driver, [], topology)
        loop.start()
        eventually(lambda: loop.failure or loop.offsets_next == {"runner.updates": 4}, 10, "a crash, or the end")  # noqa: B023
        if loop.failure is None:
            break
        crashes += 1
    loop.stop()
    loop.join(5)

    assert crashes == 5
    assert [headers["onefold-source"] for _, _, headers in driver.records("runner.updates.dead")] == [
        b"runner.updates/0/2"
    ]
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30
