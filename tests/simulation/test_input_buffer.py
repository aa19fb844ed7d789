"""What a task has read ahead of the decisions."""

from onefold.processor.loading import topology_of
from onefold.processor.runtime.input_buffer import InputBuffer
from onefold.processor.testing import SimulatedSession, TopologyDriver
from tests.simulation.test_crashes import update

RUNNER = topology_of("runner")
TOPIC = "runner.updates"


def test_it_holds_no_more_records_than_were_asked_for() -> None:
    """Also where a decision covers only some of them: the next read tops them up."""
    driver = TopologyDriver(RUNNER)
    for number in range(12):
        driver.send(TOPIC, update(1, number, 10, 1000 * number))
    session = SimulatedSession(driver.log, RUNNER, 0)
    session.open()
    session.seek({TOPIC: 0})
    buffer, decided = InputBuffer(session, 0.0), {TOPIC: 0}
    held = []
    for _ in range(3):
        buffer.read(decided, 4)
        held.append([record.offset for record in buffer.records])
    decided = {TOPIC: 3}
    buffer.drop(decided)
    held.append([record.offset for record in buffer.records])
    buffer.read(decided, 4)
    held.append([record.offset for record in buffer.records])
    assert held == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [3], [3, 4, 5, 6]]
