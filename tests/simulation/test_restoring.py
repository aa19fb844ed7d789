"""What a task does while it restores its states."""

from onefold.processor.loading import topology_of
from onefold.processor.runtime.state_manager import StateManager
from onefold.processor.testing import SimulatedSession, TopologyDriver
from tests.simulation.test_crashes import RUNNER_INPUT, feed

RUNNER = topology_of("runner")


def test_a_long_restore_says_with_each_record_that_it_goes_on() -> None:
    """The watchdog ends a process that is silent for long; a restore of millions of records takes minutes."""
    driver = TopologyDriver(RUNNER)
    feed(driver, RUNNER_INPUT)
    session = SimulatedSession(driver.log, RUNNER, 0)
    session.open()
    beats = list[int]()
    found = StateManager(RUNNER, driver.codec, 0, beat=lambda: beats.append(1)).restore(session)
    assert found.progress.transactions > 0
    assert len(beats) == len([*session.restore()]) > 3
