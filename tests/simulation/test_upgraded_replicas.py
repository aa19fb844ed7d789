"""Replicas of 0.2, which wrote proposals in another format, are upgraded one by one: one log has both, and one history."""

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import DecisionHistory, LogPosition, Proposal, ProposalKind
from onefold.processor.core.errors import Refused
from onefold.processor.io import previous_proposals
from onefold.processor.io.proposals import FORMAT, MsgpackProposals
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from tests.support.coded import raises
from tests.support.previous_proposals import PreviousProposals, decisions_of_0_2
from tests.support.replicas import RUNNER, Member, Replicas, elastic, outcome, update, values
from tests.support.tasks import log_decider


def old_world(names: str) -> Replicas:
    """With replicas of 0.2 alone."""
    world = Replicas(RUNNER, names)
    for member in world.members.values():
        member.proposals = PreviousProposals()
    return world


def formats(world: Replicas) -> list[int]:
    """Of the decided steps, in their order: the first byte of the record."""
    history, found = DecisionHistory(0, LogPosition(world.decision_log().identity().topic_id, 0, None)), []
    for offset, value in world.decision_log().read(0):
        record = MsgpackProposals().decode(value)
        decision = history.take(offset, record if isinstance(record, Proposal) else None)
        if decision is not None and decision.proposal.kind is ProposalKind.STEP:
            assert value
            found.append(value[0])
    return found


def upgrade(member: Member) -> None:
    member.kill()
    member.proposals = MsgpackProposals()


def test_a_log_of_0_2_is_gone_on_with() -> None:
    """Its very bytes. Nothing of it was published, so all of it is: outputs and states are those of one task."""
    world = Replicas(RUNNER, "a")
    sent = [*values(40), update(1, 41)]
    for value in sent:
        world.driver.send("runner.updates", value)
    world.members["a"].go_on()  # the log has the task from there on
    world.members["a"].kill()
    for value in decisions_of_0_2():
        world.decision_log().append(value)
    world.drain()

    assert outcome(world.driver) == elastic(sent)
    *old, new = formats(world)
    assert set(old) == {1}
    assert new == FORMAT


@pytest.mark.parametrize("seed", range(5))
def test_replicas_are_upgraded_one_by_one(seed: int) -> None:
    """An old replica ends at the first record that it cannot read, and takes over nothing after it. What it had under way then
    is a proposal like any other.
    """
    world = old_world("ab")
    old, new = world.members.values()
    sent = values(40)
    for number, value in enumerate(sent[:20]):
        world.driver.send("runner.updates", value)
        world.run(100 * seed + number, 3)
    old.go_on()
    assert old.replica is not None
    decision_log = log_decider(old.replica)._log
    assert isinstance(decision_log, SimulatedDecisionLog)
    under_way: list[bytes] = []
    decision_log.late = under_way
    world.driver.send("runner.updates", sent[20])
    while not under_way:
        old.go_on()

    upgrade(new)
    for value in sent[21:30]:
        world.driver.send("runner.updates", value)
        for _ in range(5):
            new.go_on()
    for value in under_way * 2:
        world.decision_log().append(value)
    publisher = world.publisher(old)
    publisher.open()
    with raises(Refused, Code.NEWER_VERSION):
        publisher.turn()
    with raises(Refused, Code.NEWER_VERSION):
        for _ in range(5):
            old.go_on()
    decided = old.replica.progress.decided_in
    assert decided is not None
    assert decided.offset <= next(at for at, value in world.decision_log().read(0) if value and value[0] == FORMAT)

    upgrade(old)
    for number, value in enumerate(sent[30:], 30):
        world.driver.send("runner.updates", value)
        world.run(100 * seed + number, 3)
    world.drain()
    assert outcome(world.driver) == elastic(sent)
    assert old.replica is not None
    assert new.replica is not None
    assert old.replica.store.snapshot() == new.replica.store.snapshot() == world.driver.states()
    assert {*formats(world)} == {previous_proposals.FORMAT, FORMAT}


def test_the_way_back_is_through_one_process_without_replicas() -> None:
    """It takes the task back. The log that is opened after that goes on where the records of the newer version end."""
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    sent = values(20)
    for value in sent[:10]:
        world.driver.send("runner.updates", value)
    world.drain()
    member.kill()
    world.driver.send("runner.updates", sent[10])
    world.driver.run()
    world.driver.stop()

    member.proposals = PreviousProposals()
    for value in sent[11:]:
        world.driver.send("runner.updates", value)
    world.drain()
    assert outcome(world.driver) == elastic(sent)
    assert {*formats(world)} == {FORMAT, previous_proposals.FORMAT}
