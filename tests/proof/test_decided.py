"""The judge's own rule of what a decision log decides, against the one that everybody else goes by."""

import random
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import History, Kind, Proposal, Range, Standing, decide
from onefold.processor.core.decision_log import Body, Note
from onefold.processor.core.values import Counts
from onefold.processor.io.proposals import AvroProposals
from onefold.proof.decided import Decided
from onefold.proof.record import Record
from onefold.proof.verdict import CannotTell
from tests.support.coded import raises

LOG = "made_up.decisions"
PROPOSALS = AvroProposals()


def proposal(
    version: int, kind: Kind = Kind.STEP, *, writes: Any = (), log_id: str = "log", **inputs: Range
) -> Proposal:
    body = Body(Counts(1, 2, 3, 4), [], PROPOSALS.encode_writes(writes))
    return Proposal(0, version, inputs, "a", body, kind, log_id)


def record(offset: int, given: Proposal) -> Record:
    return Record(LOG, 0, offset, None, PROPOSALS.encode(given))


def random_log(dice: random.Random, length: int) -> list[Proposal]:
    """Small numbers, so that much of it fits and much of it does not."""

    def part() -> Range:
        start = dice.randrange(4)
        return Range(dice.choice("iiij"), start, start + dice.choice((0, 0, 1, 1, -1)))

    def one() -> Proposal:
        kind = dice.choice((Kind.STEP, Kind.STEP, Kind.STEP, Kind.OPEN, Kind.CLOSE))
        topics = dice.choice((("a",), ("a", "b"), ("a", "b")))
        log_id = dice.choice(("log", "log", "log", "", "another"))
        return proposal(dice.randrange(1, 6), kind, log_id=log_id, **{topic: part() for topic in topics})

    return [one() for _ in range(length)]


@pytest.mark.long  # 19 s
@pytest.mark.promise("nothing-under-way-counts")
def test_both_rules_decide_alike() -> None:
    """Whatever is in the log."""
    dice = random.Random(1)
    seen = {"decided": 0, "elsewhere": 0, "of another log": 0}
    for _ in range(4_000):
        history = History({0: Standing("log", 0, None)})
        judged = Decided("log", lambda written: None)
        version = 0
        for offset, given in enumerate(random_log(dice, 40)):
            fits = decide(history.standing(0).position, given) is not None
            seen["of another log"] += fits and given.log_id == "another"
            decision = history.take(offset, given)
            if decision is not None and given.kind is Kind.OPEN and given.version != version + 1:
                with raises(CannotTell, Code.TABLES_OF_OTHER_TOPICS):
                    judged.feed(record(offset, given))
                seen["elsewhere"] += 1
                break
            judged.feed(record(offset, given))
            if decision is not None:
                seen["decided"] += 1
                version = decision.position.version
            standing, position = judged.standings.get(0), history.standing(0).position
            assert (standing is None) == (position is None)
            if standing is not None and position is not None:
                inputs = {topic: tuple(at) for topic, at in position.inputs.items()}
                assert (standing.version, standing.inputs, standing.closed) == (
                    position.version,
                    inputs,
                    position.closed,
                )
    assert min(seen.values()) > 500, seen


def test_what_a_decision_writes_is_handed_on_with_its_place() -> None:
    """Of those that came to nothing there is nothing."""
    taken: list[Record] = []
    judged = Decided("log", taken.append)
    writes = [("made_up.a", None, b"k", b"v", [("h", b"x")]), ("made_up.b", 1, None, None, None)]
    judged.feed(record(0, proposal(1, Kind.OPEN, a=Range("i", 0, 0))))
    judged.feed(record(1, proposal(2, writes=writes, a=Range("i", 0, 3))))
    judged.feed(record(2, proposal(1, writes=writes, a=Range("i", 0, 3))))
    judged.feed(record(3, proposal(1, writes=writes, a=Range("i", 0, 3))))
    assert taken == [
        Record("made_up.a", 0, 2 << 21, b"k", b"v", [("h", b"x")]),
        Record("made_up.b", 0, (2 << 21) + 1, None, None, []),
    ]
    assert judged.wrote == {(0, "made_up.a"): 2, (0, "made_up.b"): 2}
    assert judged.counts == {"accepted": 2, "ignored": 4, "forwarded": 6, "dead": 8}


@pytest.mark.parametrize("value", [None, b"", b"\0", b"\x01", b"\x01xx", PROPOSALS.encode_note(Note(0, "a", {}))])
def test_what_is_no_proposal_decides_nothing(value: bytes | None) -> None:
    judged = Decided("log", lambda written: None)
    judged.feed(Record(LOG, 0, 0, None, value))
    assert judged.standings == {}


def test_another_task_decides_elsewhere() -> None:
    judged = Decided("log", lambda written: None)
    judged.feed(record(0, proposal(1, Kind.OPEN, a=Range("i", 0, 0))._replace(task=1)))
    assert judged.standings == {}


def test_a_newer_log_cannot_be_judged() -> None:
    with raises(CannotTell, Code.NEWER_VERSION):
        Decided("log", lambda written: None).feed(Record(LOG, 0, 0, None, b"\x02"))
