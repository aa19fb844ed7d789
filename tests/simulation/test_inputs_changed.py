"""A pipeline that reads another topic for some time, and not always."""

from dataclasses import replace

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import Decision, InputPosition, ProposalKind, TaskPosition
from onefold.processor.core.decision_log import ProposalBody
from onefold.processor.core.errors import Refused
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import RecordCounts
from onefold.processor.runtime.changelog import DecidedIn, TaskProgress
from onefold.processor.runtime.log_decider import proposal_of
from onefold.processor.testing import SimulatedLog, SimulatedSession
from tests.support.clock import Clock
from tests.support.coded import raises
from tests.support.tasks import elastic_task
from tests.verify.test_order import JOIN, LEFT, RIGHT, Plain

ONE = replace(JOIN, inputs=(LEFT,))


@pytest.fixture
def log() -> SimulatedLog:
    made = SimulatedLog()
    for topic in (*JOIN.inputs, *JOIN.dead.values(), f"{JOIN.name}.order", JOIN.changelog):
        made.create(topic, 1)
    return made


def send(log: SimulatedLog, *topics: str) -> None:
    for topic in topics:
        log.append(topic, b"one", b"1", partition=0)


def run(log: SimulatedLog, topology: Topology) -> object:
    """What is there is processed, in one life of a task. Returns the state."""
    task = elastic_task(topology, SimulatedSession(log, topology, 0), Plain(), clock=Clock())
    task.open()
    while task.turn():
        pass
    task.close()
    return task.store.get("one")


def test_an_input_that_comes_back_goes_on_where_it_was(log: SimulatedLog) -> None:
    """As in a release that is taken back and made again: its records are behind the states already. What came meanwhile comes
    then.
    """
    send(log, LEFT, RIGHT)
    run(log, JOIN)
    for _ in range(2):  # more than one life without it
        send(log, LEFT, RIGHT)
        run(log, ONE)
    send(log, LEFT, RIGHT)
    state = run(log, JOIN)
    assert isinstance(state, list)
    assert sorted(state) == [[topic, offset] for topic in (LEFT, RIGHT) for offset in range(4)]


def test_an_input_that_comes_back_as_another_topic_is_refused(log: SimulatedLog) -> None:
    """The records behind the states were those of the first one."""
    send(log, LEFT, RIGHT)
    run(log, JOIN)
    send(log, LEFT)
    run(log, ONE)
    log.create(RIGHT, 1)
    with raises(Refused, Code.TOPIC_RECREATED, RIGHT):
        run(log, JOIN)


def test_an_input_that_comes_back_without_what_comes_next_is_refused(log: SimulatedLog) -> None:
    """Retention has deleted records that nobody has processed."""
    send(log, LEFT, RIGHT)
    run(log, JOIN)
    send(log, LEFT, RIGHT, RIGHT)
    run(log, ONE)
    log.truncate(RIGHT, 0, 2)
    with raises(Refused, Code.RECORDS_DELETED, RIGHT):
        run(log, JOIN)


def test_former_inputs_are_stored() -> None:
    progress = TaskProgress({LEFT: "l"}, {LEFT: 3}, former={RIGHT: ("r", 7)})
    assert TaskProgress.decode(progress.encode()) == progress
    assert b"former" not in TaskProgress({LEFT: "l"}, {LEFT: 3}).encode(), "as before, where there are none"


def test_a_decision_keeps_former_inputs() -> None:
    """A publisher writes the progress that follows from the decisions."""
    before = TaskProgress({LEFT: "l"}, {LEFT: 3}, decided_in=DecidedIn("log", 0, opened=True), former={RIGHT: ("r", 7)})
    proposal = proposal_of(before, 0, "a", ProposalKind.STEP, {LEFT: 4}, ProposalBody(RecordCounts(), [], b"", 0))
    decision = Decision(0, proposal, TaskPosition(1, {LEFT: InputPosition("l", 4)}))
    assert before.after(decision).former == before.former
