"""Every order in which replicas may compute, append, hang, crash and read: one history, every input once, nobody waits.

And every wrong rule is found: the schedule that shows it is printed (`pytest -s`).
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.decision import (
    InputPosition,
    LogPosition,
    Proposal,
    ProposalKind,
    Range,
    TaskPosition,
    decide,
)
from tests.support.decision_model import (
    STEP,
    Log,
    Model,
    Sent,
    Take,
    View,
    World,
    adopted,
    position_of,
    prefix,
    proposal_of,
    take,
)
from tests.support.explorer import explore

Budgets = Mapping[str, int]
CRASH: Budgets = {"proposals": 3, "crashes": 1}
TWICE: Budgets = {"proposals": 3, "duplicates": 1}
BOTH: Budgets = {"proposals": 2, "crashes": 1, "duplicates": 1}
THREE: Budgets = {"replicas": 3, "proposals": 2, "crashes": 1}
# Each of three may have one under way, that arrives when others have decided, and one of these arrives again.
THREE_TWICE: Budgets = {"replicas": 3, "proposals": 3, "duplicates": 1}
THREE_BOTH: Budgets = {"replicas": 3, "proposals": 2, "crashes": 1, "duplicates": 1}
# A close, a handing over and another opening, with a proposal that may be under way all the time.
SHIFTS: Budgets = {"proposals": 1, "shifts": 3}
ALIKE = Model(alike=True)


@pytest.mark.long  # 40 s
@pytest.mark.parametrize(
    ("model", "budgets"),
    [
        (ALIKE, {"proposals": 3}),
        (ALIKE._replace(ends=(1, 1)), CRASH),
        (ALIKE._replace(ends=(1, 1)), TWICE),
        (ALIKE, BOTH),
        (ALIKE._replace(ends=(1, 1)), THREE),
        (ALIKE._replace(ends=(1, 1)), THREE_BOTH),
        (ALIKE._replace(ends=(2, 0)), THREE_TWICE),
        (ALIKE._replace(ends=(1, 1)), {**THREE_TWICE, "proposals": 2}),
        (Model(wrong_handler=True), BOTH),
        (Model(ends=(1, 1), wrong_handler=True, careless=True), TWICE),
        (Model(ends=(1, 0), wrong_handler=True, reopens=True, publishes=True), SHIFTS),
    ],
    ids=[
        "late",
        "crash",
        "retry",
        "crash and retry",
        "three",
        "three, crash and retry",
        "three and retry",
        "three and retry of two inputs",
        "wrong",
        "wrong and careless",
        "elastic and back",
    ],
)
def test_in_every_order_the_rule_holds(model: Model, budgets: Budgets) -> None:
    """All readers agree at every prefix; every input once; each decision on the state before it; each replica alone goes on."""
    found = explore(model.start(**budgets), model.steps, model.fault)

    assert found.fault == "", str(found)
    assert found.states > 2_500


def decided(world: World) -> tuple[Sent, ...]:
    return prefix(take, world.log, len(world.log)).history


def late_and_twice(world: World) -> bool:
    """The third one's comes after two versions that it is too old for; the first version's comes once more after that."""
    log, came_true = world.log, decided(world)
    if len(came_true) < 3 or len(log) < 5:
        return False
    first, late, again = came_true[1], log[-2], log[-1]
    whose = {first.who, came_true[2].who, late.who}
    return len(whose) == 3 and late.version == first.version and again == first and log.count(first) == 2


@pytest.mark.long  # 10 s
@pytest.mark.parametrize(
    ("reached", "model", "budgets"),
    [
        (lambda world: decided(world)[-1].end == (2, 1), Model(), CRASH),
        (lambda world: decided(world)[-1].state == -1, Model(wrong_handler=True), CRASH),
        (lambda world: decided(world)[-1].who == "r2", Model(ends=(2, 0)), THREE),
        (late_and_twice, Model(ends=(2, 0)), THREE_TWICE),
        (lambda world: decided(world)[-1].version > 3 and decided(world)[-1].kind == STEP, Model(), SHIFTS),
    ],
    ids=[
        "everything is read",
        "the wrong one wins",
        "the third one wins",
        "late and twice",
        "a step after a second opening",
    ],
)
def test_the_search_gets_there(reached: Callable[[World], bool], model: Model, budgets: Budgets) -> None:
    """A property that holds for want of anything to hold for is none."""
    found = explore(model.start(**budgets), model.steps, lambda world: "reached" if reached(world) else "")

    assert found.fault == "reached"


# --- wrong rules: of the log alone


def by(rule: Callable[[TaskPosition | None, Proposal], TaskPosition | None]) -> Take:
    """Reading by another rule than `decide`."""

    @cache
    def read(view: View, log: Log, offset: int, own: Sent | None) -> View:
        position = rule(position_of(view), proposal_of(log[offset]))
        return view if position is None else adopted(view, position, log[offset])

    return read


def stale_version(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """It starts at the right place; that it was computed long ago does not matter."""
    if position and proposal.kind is ProposalKind.STEP and proposal.version < position.version:
        proposal = proposal._replace(version=position.version)
    return decide(position, proposal)


def any_start(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """The version decides, wherever it starts."""
    if position and proposal.kind is ProposalKind.STEP:
        inputs = {topic: Range(*position.inputs[topic], end) for topic, (_, _, end) in proposal.inputs.items()}
        proposal = proposal._replace(inputs=inputs)
    return decide(position, proposal)


def same_again(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """Neither the version nor the start is looked at."""
    if position and proposal.kind is ProposalKind.STEP:
        proposal = proposal._replace(version=position.version)
    return any_start(position, proposal)


def sent_again(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """What came true comes true again, when it comes again: its acknowledgement was lost."""
    after = decide(position, proposal)
    if after is None and position and proposal.kind is ProposalKind.STEP and proposal.version == position.version - 1:
        ends = {topic: InputPosition(topic_id, end) for topic, (topic_id, _, end) in proposal.inputs.items()}
        return position._replace(version=position.version + 1) if ends == position.inputs else None
    return after


def not_final(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """A close is a decision like any other."""
    after = decide(position, proposal)
    return after and after._replace(closed=False)


def any_opening(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """A closed log can be opened, by whoever says so."""
    if position and position.closed and proposal.kind is ProposalKind.OPEN:
        position = None
    return decide(position, proposal)


def opening_at_the_close(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """An opening may have the version of the close itself."""
    if position and position.closed and proposal.kind is ProposalKind.OPEN:
        position = position._replace(version=position.version - 1)
    return decide(position, proposal)


def turns(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """One after the other: there is a leader for each version."""
    mine = proposal.kind is not ProposalKind.STEP or proposal.proposer == f"r{proposal.version % 2}"
    return decide(position, proposal) if mine else None


# --- wrong rules: of who reads


@cache
def last_wins(view: View, log: Log, offset: int, own: Sent | None) -> View:
    """Of several proposals of a version the latest one."""
    sent = log[offset]
    if view.history and view.history[-1].kind == sent.kind == STEP and sent.version == view.version - 1:
        position = TaskPosition(
            view.version, {"left": InputPosition("left", sent.end[0]), "right": InputPosition("right", sent.end[1])}
        )
        return adopted(view._replace(history=view.history[:-1]), position, sent)
    return take(view, log, offset, own)


@cache
def by_value(view: View, log: Log, offset: int, own: Sent | None) -> View:
    """A replica that finds its own result takes it for its own proposal."""
    after, sent = take(view, log, offset, None), log[offset]
    if own is None or after is view or (own.version, own.state) != (sent.version, sent.state):
        return after
    return after._replace(at=own.end, history=(*view.history, own))


@cache
def acknowledged(view: View, log: Log, offset: int, own: Sent | None) -> View:
    """What was appended has won: proposals of others do not count as long as one's own is in the log."""
    if own is not None and own.version == view.version and log[offset].who != own.who and own in log:
        return view
    return take(view, log, offset, None)


@cache
def own_result(view: View, log: Log, offset: int, own: Sent | None) -> View:
    """A loser keeps what it has computed itself, as long as it read the same."""
    after, sent = take(view, log, offset, None), log[offset]
    same = own is not None and after is not view and (own.version, own.end) == (sent.version, sent.end)
    return after._replace(state=own.state) if own is not None and same else after


@cache
def majority(view: View, log: Log, offset: int, own: Sent | None) -> View:
    """Decided is what two have proposed something for."""
    sent = log[offset]
    others = [one for one in log[:offset] if one.version == sent.version and one.who != sent.who]
    return take(view, log, offset, None) if others or sent.kind != STEP else view


def anywhere(log: PartitionIdentity, stored: LogPosition | None) -> LogPosition:
    """Who knows nothing begins at what is left of the log."""
    return stored or LogPosition(log.topic_id, log.start, None)


@pytest.mark.parametrize(
    ("model", "budgets", "sentence"),
    [
        (Model(by(stale_version), ends=(1, 0)), SHIFTS, "decided twice"),
        (Model(by(any_start), careless=True), CRASH, "comes next"),
        (Model(by(same_again), alike=True), CRASH, "decided twice"),
        (Model(by(sent_again), alike=True), {**THREE_TWICE, "proposals": 1}, "decided twice"),
        (Model(by(not_final), ends=(1, 0)), SHIFTS, "decided twice"),
        (Model(by(any_opening), ends=(1, 0)), SHIFTS, "decided twice"),
        (Model(by(opening_at_the_close), ends=(1, 0), reopens=True), SHIFTS, "decided twice"),
        (Model(by(opening_at_the_close), ends=(1, 0), publishes=True), SHIFTS, "decided twice"),
        (Model(by(turns)), CRASH, "alone makes no progress"),
        (Model(majority), CRASH, "alone makes no progress"),
        (Model(last_wins, alike=True), CRASH, "the history was rewritten"),
        (Model(by_value, proud=True), CRASH, "another reader"),
        (Model(acknowledged, proud=True), CRASH, "another reader"),
        (Model(own_result, wrong_handler=True, proud=True), CRASH, "another reader"),
        (Model(begin=anywhere, alike=True), CRASH, "another reader"),
    ],
    ids=[
        "stale version",
        "any start",
        "neither",
        "sent again",
        "a close is not final",
        "any opening",
        "an opening at the close",
        "an opening of a copy",
        "turns",
        "majority",
        "last wins",
        "by value",
        "acknowledged",
        "own result",
        "anywhere",
    ],
)
def test_a_wrong_rule_is_found(model: Model, budgets: Any, sentence: str) -> None:
    """By the shortest schedule that shows it."""
    found = explore(model.start(**budgets), model.steps, model.fault)

    print(f"\n{found}")  # noqa: T201
    assert sentence in found.fault, str(found)
