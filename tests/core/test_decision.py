"""The decision: which proposals win, and where a reader may begin."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.decision import (
    Decision,
    DecisionHistory,
    InputPosition,
    LogPosition,
    Proposal,
    ProposalKind,
    Range,
    TaskPosition,
    begin,
    decide,
)
from onefold.processor.core.errors import Refused
from tests.support.coded import raises

LEFT, RIGHT = "averages.left", "averages.right"
HERE = TaskPosition(7, {LEFT: InputPosition("l", 10), RIGHT: InputPosition("r", 20)})
CLOSED = HERE._replace(closed=True)
LOG = PartitionIdentity("log", 0, 100)


def proposal(left: int = 12, right: int = 20, version: int = 7, **others: Any) -> Proposal:
    """A step from `HERE` on, to those ends."""
    inputs = {LEFT: Range("l", 10, left), RIGHT: Range("r", 20, right)}
    return Proposal(**{"task": 0, "version": version, "inputs": inputs, "proposer": "one", **others})


def close(version: int = 7, left: int = 10) -> Proposal:
    return proposal(left, version=version, kind=ProposalKind.CLOSE)


def opening(version: int, left: int = 10, left_id: str = "l", **others: Any) -> Proposal:
    inputs = {LEFT: Range(left_id, left, left), RIGHT: Range("r", 20, 20)}
    return Proposal(0, version, **{"inputs": inputs, "proposer": "one", "kind": ProposalKind.OPEN, **others})


def test_what_fits_the_position_is_decided() -> None:
    """The version goes up by one, and every input to the end of its range."""
    assert decide(HERE, proposal(12, 25)) == TaskPosition(
        8, {LEFT: InputPosition("l", 12), RIGHT: InputPosition("r", 25)}
    )


def test_one_input_may_stand_still() -> None:
    """As long as another one moves; whether records or only markers were passed, no offset tells."""
    assert decide(HERE, proposal(11, 20)) == TaskPosition(
        8, {LEFT: InputPosition("l", 11), RIGHT: InputPosition("r", 20)}
    )


def test_of_two_proposals_the_first_wins() -> None:
    """The same one again is a loser as well."""
    after = decide(HERE, proposal())
    assert after is not None
    assert decide(after, proposal()) is None
    assert decide(after, proposal(15, proposer="two")) is None


@pytest.mark.parametrize(
    ("why", "loser"),
    [
        ("of an older version", proposal(version=6)),
        ("of a later version", proposal(version=8)),
        ("moves nothing", proposal(10, 20)),
        ("goes back", proposal(9, 25)),
        ("starts later", proposal(inputs={LEFT: Range("l", 11, 12), RIGHT: Range("r", 20, 21)})),
        ("starts earlier", proposal(inputs={LEFT: Range("l", 9, 12), RIGHT: Range("r", 20, 21)})),
        ("an input is missing", proposal(inputs={LEFT: Range("l", 10, 12)})),
        ("another topic of that name", proposal(inputs={LEFT: Range("new", 10, 12), RIGHT: Range("r", 20, 21)})),
        (
            "an unknown input",
            proposal(inputs={LEFT: Range("l", 10, 12), RIGHT: Range("r", 20, 21), "x": Range("x", 0, 1)}),
        ),
        ("a close that reads", close(left=12)),
        ("a close of an older version", close(6)),
        ("an opening of what is open", opening(8)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_loses(why: str, loser: Proposal) -> None:
    """Each by its one fault."""
    assert decide(HERE, loser) is None


def test_who_proposed_and_what_does_not_matter() -> None:
    """A wrong replica may win; what it says is then what happened, for everybody."""
    assert decide(HERE, proposal(proposer="two", body=b"nonsense")) == decide(HERE, proposal(body=b"sense"))


def test_what_was_written_for_another_log_loses_whatever_else_it_says() -> None:
    """Of an Onefold that did not say for which one, it may win."""
    history = DecisionHistory(0, LogPosition("new", 0, HERE))
    assert history.take(0, proposal(log_id="old")) is None
    assert history.take(1, opening(8, log_id="old")) is None
    assert history.take(2, proposal(log_id="new")) is not None
    assert history.take(3, proposal(13, inputs={LEFT: Range("l", 12, 13), RIGHT: Range("r", 20, 20)}, version=8))


def test_a_close_competes_and_is_a_version_of_its_own() -> None:
    """First it or first the step: the other one loses."""
    closed = decide(HERE, close())
    assert closed == TaskPosition(8, HERE.inputs, closed=True)
    assert decide(closed, proposal()) is None
    assert decide(closed, proposal(version=8)) is None
    assert decide(closed, close(8)) is None
    stepped = decide(HERE, proposal())
    assert decide(stepped, close()) is None


def test_a_task_begins_with_an_opening_anywhere() -> None:
    """Whatever its changelog had come to; nothing is decided before."""
    assert decide(None, proposal()) is None
    assert decide(None, close()) is None
    assert decide(None, opening(7)) == HERE


@pytest.mark.parametrize(
    ("why", "loser"),
    [
        ("left over from before the close", opening(6)),
        ("of the close itself: the changelog was not asked", opening(7)),
        ("an input went back", opening(9, left=9)),
        ("another topic of that name", opening(9, left_id="new")),
        ("reads something", opening(9, inputs={LEFT: Range("l", 10, 12), RIGHT: Range("r", 20, 20)})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_opening_comes_out_of_the_changelog(why: str, loser: Proposal) -> None:
    """After a close a version above it, and no input goes back."""
    assert decide(CLOSED, loser) is None


def test_what_the_changelog_did_in_between_is_where_the_log_goes_on() -> None:
    """Offsets moved, one input went, another came."""
    inputs = {LEFT: Range("l", 15, 15), "averages.third": Range("t", 3, 3)}
    opened = decide(CLOSED, opening(12, inputs=inputs))

    assert opened == TaskPosition(12, {LEFT: InputPosition("l", 15), "averages.third": InputPosition("t", 3)})
    assert decide(opened, proposal()) is None


def test_what_was_proposed_before_a_close_is_not_decided_after_it() -> None:
    """Nothing was read in between, so it starts at the right place; only its version is stale."""
    opened = decide(CLOSED, opening(9))
    assert opened is not None
    assert opened.inputs == HERE.inputs
    assert decide(opened, proposal()) is None
    assert decide(opened, proposal(version=9)) is not None


# --- where a reader begins


def test_a_reader_with_the_whole_log_knows_everything() -> None:
    """It begins before anything was opened."""
    assert begin(LOG, None) == LogPosition("log", 0, None)


def test_a_reader_goes_on_from_what_it_stored() -> None:
    """Also when what came before is deleted."""
    stored = LogPosition("log", 40, HERE)
    assert begin(LOG._replace(start=40), stored) == stored
    assert begin(LOG._replace(end=40), stored) == stored


@pytest.mark.parametrize(
    ("log", "stored", "sentence"),
    [
        (LOG._replace(start=1), None, "starts at offset 1: what was decided before cannot be known"),
        (LOG._replace(start=41), LogPosition("log", 40, HERE), "starts at offset 41, but 40 comes next"),
        (LOG._replace(end=39), LogPosition("log", 40, HERE), "ends at offset 39, but 40 was reached before"),
        (LOG, LogPosition("old", 40, HERE), "deleted and created again"),
    ],
    ids=["no beginning", "behind the start", "beyond the end", "another log"],
)
def test_a_reader_that_cannot_know_says_so(log: PartitionIdentity, stored: LogPosition | None, sentence: str) -> None:
    """A proposal that fits may have lost to one that is gone."""
    with pytest.raises(Refused, match=sentence):
        begin(log, stored)


def test_a_missing_record_is_noticed() -> None:
    """Retention may pass a reader while it reads."""
    history = DecisionHistory(0, LogPosition("log", 40, HERE))
    with raises(Refused, Code.DECISIONS_LOST, "40", "42"):
        history.take(42, proposal())


def test_another_task_or_a_record_that_is_no_proposal_decides_nothing() -> None:
    history = DecisionHistory(1, LogPosition("log", 3, HERE))
    mine = proposal(task=1)
    found = [history.take(offset, record) for offset, record in enumerate([proposal(task=0), None, mine], start=3)]
    after = TaskPosition(8, {LEFT: InputPosition("l", 12), RIGHT: InputPosition("r", 20)})
    assert (found, history.offset_next) == ([None, None, Decision(5, mine, after)], 6)


# --- random logs: proposals of honest, late, wrong and malicious replicas alike


@st.composite
def logs(draw: st.DrawFn) -> list[Proposal | None]:
    """Half of the proposals fit where the task stands; the others are anything."""
    log: list[Proposal | None] = []
    position: TaskPosition | None = None
    small = st.integers(0, 3)
    for _ in range(draw(st.integers(0, 30))):
        version, start, reads = draw(st.integers(0, 9)), draw(small), draw(small)
        kind, topic_id = draw(st.sampled_from(ProposalKind)), draw(st.sampled_from(["l", "l", "other"]))
        if position is not None and draw(st.booleans()):
            topic_id, start = position.inputs[LEFT]
            version = position.version + (version if position.closed else 0)
            kind = ProposalKind.OPEN if position.closed else kind
        end = start + (reads if kind is ProposalKind.STEP else 0)
        made = Proposal(0, version, {LEFT: Range(topic_id, start, end)}, "one", kind=kind)
        log.append(draw(st.sampled_from([made, made, made, None])))
        if log[-1] is made:
            position = decide(position, made) or position
    return log


def whole(log: list[Proposal | None]) -> list[Decision]:
    history = DecisionHistory(0, begin(LOG, None))
    return [found for at, record in enumerate(log) if (found := history.take(at, record))]


@given(logs(), st.lists(st.integers(0, 30), max_size=4))
def test_wherever_a_reader_stops_and_goes_on_it_is_the_same_history(
    log: list[Proposal | None], stops: list[int]
) -> None:
    """What it knew is stored, and comes back out of the store."""
    standing, found = begin(LOG, None), list[Decision]()
    for stop in [*sorted(stops), len(log)]:
        history = DecisionHistory(0, standing)
        for at in range(history.offset_next, min(stop, len(log))):
            found += [decision] if (decision := history.take(at, log[at])) else []
        standing = LogPosition(standing.log_id, history.offset_next, found[-1].position if found else None)
    assert found == whole(log)


@given(logs())
def test_whatever_is_in_the_log_every_input_is_read_once_and_in_order(log: list[Proposal | None]) -> None:
    """Within what lies between an opening and a close; versions never go back."""
    last: TaskPosition | None = None
    for decision in whole(log):
        kind, (topic_id, start, end) = decision.proposal.kind, decision.proposal.inputs[LEFT]
        if last is not None:
            assert decision.position.version > last.version
            assert last.closed == (kind is ProposalKind.OPEN)
            assert last.inputs[LEFT].topic_id == topic_id
            before = last.inputs[LEFT].offset
            assert start >= before if last.closed else start == before
        assert (start < end) == (kind is ProposalKind.STEP)
        last = decision.position
