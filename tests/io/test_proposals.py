"""Records of a decision log: every replica reads the same bytes to the same proposal, and other bytes to none."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Proposal, ProposalKind, Range
from onefold.processor.core.decision_log import ProposalBody, StatusRecord
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import RecordCounts
from onefold.processor.io import previous_proposals, proposals
from onefold.processor.io.proposals import FORMAT, MsgpackProposals
from tests.support.coded import raises
from tests.support.previous_proposals import PreviousProposals, decisions_of_0_2

CODEC, PREVIOUS = MsgpackProposals(), PreviousProposals()
# Lengths on both sides of those at which msgpack and Avro need a byte more.
BYTES = st.one_of(
    st.binary(max_size=70),
    st.sampled_from([b"x" * length for length in (63, 64, 255, 256, 8191, 8192, 65_535, 65_536)]),
)
OPTIONAL = st.none() | BYTES
TEXT, LONG = st.text(max_size=70), st.integers(0, 2**63 - 1)
HEADERS = st.none() | st.lists(st.tuples(TEXT, OPTIONAL), min_size=1, max_size=3)
WRITES = st.lists(st.tuples(TEXT, st.none() | st.integers(0, 2**31 - 1), OPTIONAL, OPTIONAL, HEADERS), max_size=5)
STATES = st.lists(st.tuples(BYTES, OPTIONAL), max_size=5)
BODIES = st.builds(ProposalBody, st.builds(RecordCounts, LONG, LONG, LONG, LONG), STATES, st.just(b""), LONG)
INPUTS = st.dictionaries(TEXT, st.builds(Range, TEXT, LONG, LONG), max_size=3)
PROPOSALS = st.builds(
    Proposal, st.integers(0, 2**31 - 1), LONG, INPUTS, TEXT, BODIES, st.sampled_from(ProposalKind), TEXT
)
NOTES = st.builds(
    StatusRecord,
    st.integers(0, 2**31 - 1),
    TEXT,
    st.dictionaries(TEXT, st.none() | st.booleans() | LONG | TEXT, max_size=3),
    TEXT,
)
# Cut or not, with some bytes changed.
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4)
ONE = Proposal(
    5, 7, {"t": Range("id", 1, 9)}, "me", ProposalBody(RecordCounts(1, 2, 3, 4), [(b"k", None)], b"w", 77), log_id="log"
)


def fields() -> Any:
    """Those of `ONE`, as its bytes have them."""
    return msgpack.decode(CODEC.encode(ONE)[1:])


def decoded(found: Any) -> Proposal | StatusRecord | None:
    return CODEC.decode(bytes((FORMAT,)) + msgpack.encode(found))


@given(PROPOSALS, WRITES)
def test_a_proposal_is_read_as_it_was_written(proposal: Proposal, writes: list[Write]) -> None:
    proposal = proposal._replace(body=proposal.body._replace(writes=CODEC.encode_writes(writes)))
    found = CODEC.decode(CODEC.encode(proposal))
    assert isinstance(found, Proposal)
    assert found == proposal
    assert isinstance(found.body, ProposalBody)
    assert CODEC.writes(found.body.writes) == writes


@given(NOTES)
def test_a_note_is_read_as_it_was_written(note: StatusRecord) -> None:
    assert CODEC.decode(CODEC.encode_note(note)) == note


@given(PROPOSALS, WRITES)
def test_a_proposal_of_0_2_is_read_as_it_was_written(proposal: Proposal, writes: list[Write]) -> None:
    proposal = proposal._replace(body=proposal.body._replace(writes=PREVIOUS.encode_writes(writes)))
    found = CODEC.decode(PREVIOUS.encode(proposal))
    assert isinstance(found, Proposal)
    assert found == proposal
    assert CODEC.writes(found.body.writes) == writes


@given(NOTES)
def test_a_note_of_0_2_is_read_as_it_was_written(note: StatusRecord) -> None:
    assert CODEC.decode(PREVIOUS.encode_note(note)) == note


def test_the_bytes_that_0_2_wrote_are_those_of_the_tests() -> None:
    """What the tests write in its place is what it wrote."""
    for value in decisions_of_0_2():
        found = CODEC.decode(value)
        assert found is not None
        if isinstance(found, Proposal):
            assert PREVIOUS.encode(found) == value
            assert PREVIOUS.encode_writes(CODEC.writes(found.body.writes)) == found.body.writes
        else:
            assert PREVIOUS.encode_note(found) == value


def test_a_record_that_names_no_log_is_read() -> None:
    """It ended one byte before the empty name."""
    unnamed = ONE._replace(body=ONE.body._replace(writes=b"\x01w"), log_id="")
    assert CODEC.decode(PREVIOUS.encode(unnamed)[:-1]) == unnamed
    named = unnamed._replace(log_id="log")
    assert CODEC.decode(PREVIOUS.encode(named)[:-1]) is None, "a name that is cut"


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"\x00abc", b"\x01", b"\x02", b"\x02\xc1", b"\x01\xff"])
def test_bytes_of_no_version_are_no_proposal(value: bytes | None) -> None:
    assert CODEC.decode(value) is None


@pytest.mark.parametrize("first", [FORMAT + 1, 0x7B, 0xFF])
def test_a_record_of_a_newer_onefold_is_refused(first: int) -> None:
    with raises(Refused, Code.NEWER_VERSION, f"format {first}"):
        CODEC.decode(bytes((first,)) + CODEC.encode(ONE)[1:])


@given(PROPOSALS | NOTES, st.sampled_from([CODEC, PREVIOUS]), CHANGES)
def test_changed_bytes_are_a_record_or_none(record: Any, codec: Any, changes: list[tuple[float, int]]) -> None:
    """No reader fails at them, and whatever they are is made of the right types: it can be written and read again."""
    value = bytearray(codec.encode(record) if isinstance(record, Proposal) else codec.encode_note(record))
    for place, byte in changes:
        value[1 + int(place * (len(value) - 2))] = byte
    found = CODEC.decode(bytes(value))
    if isinstance(found, Proposal):
        assert CODEC.decode(CODEC.encode(found)) == found
    elif found is not None:
        assert CODEC.decode(CODEC.encode_note(found)) == found


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    """JSON can spell it, and 0.2 never did; it could not be written again."""
    assert CODEC.decode(PREVIOUS.encode_note(StatusRecord(0, "a", {"\ud800": 1}))) is None


@given(st.binary(max_size=200), st.sampled_from([1, 2]))
def test_any_bytes_are_a_record_or_none(data: bytes, first: int) -> None:
    CODEC.decode(bytes((first,)) + data)


@given(PROPOSALS, st.floats(0, 1), st.binary(min_size=1, max_size=5))
def test_a_record_is_all_of_its_bytes(proposal: Proposal, place: float, more: bytes) -> None:
    value = CODEC.encode(proposal)
    assert CODEC.decode(value[: int(place * (len(value) - 1))]) is None
    assert CODEC.decode(value + more) is None


@given(PROPOSALS)
def test_every_spelling_is_the_same_proposal(proposal: Proposal) -> None:
    """msgpack may spell a number, a length and a key more than once. Which replica wrote them changes nothing for a reader."""
    value = CODEC.encode(proposal)
    assert CODEC.decode(bytes((FORMAT,)) + widest(msgpack.decode(value[1:]))) == proposal


def widest(value: Any) -> bytes:
    """msgpack in as many bytes as it can take; each key of a map also with another value, before the one that counts."""
    if value is None:
        return b"\xc0"
    if isinstance(value, int):
        return b"\xd3" + value.to_bytes(8, signed=True)
    length = len(value.encode() if isinstance(value, str) else value).to_bytes(4)
    if isinstance(value, str):
        return b"\xdb" + length + value.encode()
    if isinstance(value, bytes):
        return b"\xc6" + length + value
    if isinstance(value, dict):
        twice = [(key, one) for key, found in value.items() for one in (["other", 0, 1], found)]
        return b"\xdf" + len(twice).to_bytes(4) + b"".join(widest(key) + widest(one) for key, one in twice)
    return b"\xdd" + length + b"".join(map(widest, value))


TASK, VERSION, READS, BODY, KIND = 1, 2, 3, 5, 6


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.append(None),
        lambda found: found.pop(),
        lambda found: found.__setitem__(0, "other"),
        lambda found: found.__setitem__(0, "note"),
        lambda found: found.__setitem__(VERSION, 7.0),
        lambda found: found.__setitem__(VERSION, "7"),
        lambda found: found.__setitem__(VERSION, None),
        lambda found: found.__setitem__(TASK, True),
        lambda found: found.__setitem__(KIND, "other"),
        lambda found: found.__setitem__(KIND, b"step"),
        lambda found: found.__setitem__(READS, None),
        lambda found: found[READS].__setitem__("t", ["id", 1]),
        lambda found: found[READS].__setitem__("t", ["id", 1, 9, 9]),
        lambda found: found[READS].__setitem__(b"t", ["id", 1, 9]),
        lambda found: found[BODY].append(0),
        lambda found: found[BODY][0].append(0),
        lambda found: found[BODY].__setitem__(1, [[b"k"]]),
        lambda found: found[BODY].__setitem__(1, [[b"k", "text"]]),
        lambda found: found[BODY].__setitem__(2, "text"),
        lambda found: found[BODY].__setitem__(2, [1]),
        lambda found: found[BODY].__setitem__(3, msgpack.Ext(1, b"")),
    ],
)
def test_a_value_outside_its_type_makes_no_proposal(change: Callable[[Any], object]) -> None:
    found = fields()
    assert decoded(found) == ONE
    change(found)
    assert decoded(found) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{", b"\xff", b'{"a": 1} 2', b"[" * 100_000, b'{"a":' * 100_000])
def test_a_note_is_a_json_object(body: bytes) -> None:
    assert decoded(["note", 5, "me", body, "log"]) is None
    assert decoded(["note", 5, "me", b'{"a": 1}', "log"]) == StatusRecord(5, "me", {"a": 1}, "log")


def test_a_lack_of_memory_is_not_taken_for_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica, which has the memory, reads a proposal there."""

    def fails(_: object) -> object:
        raise MemoryError

    monkeypatch.setattr(proposals, "_record_of", fails)
    with pytest.raises(MemoryError):
        CODEC.decode(CODEC.encode(ONE))


@given(st.binary(max_size=100))
def test_bytes_that_are_no_writes_raise(data: bytes) -> None:
    """A proposal whose writes cannot be read is decided all the same, and nobody publishes a part of them."""
    try:
        found = CODEC.writes(b"\x95" + data)
    except ValueError:
        return
    assert CODEC.writes(CODEC.encode_writes(found)) == found


def test_writes_of_both_formats_are_told_apart() -> None:
    """By the first byte."""
    assert PREVIOUS.encode_writes([])[0] == previous_proposals.FORMAT
    for number in (0, 1, 15, 16, 65_536):
        assert CODEC.encode_writes([("t", None, None, None, None)] * number)[0] >= 0x90
