"""What is written by hand of a decision is the Avro that its contracts say."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body, Note
from onefold.processor.core.values import Counts
from onefold.processor.io.contracts import FOLDER
from onefold.processor.io.decision_bytes import decode_writes, encode_bytes, encode_writes
from onefold.processor.io.proposals import AvroProposals

SCHEMAS = {
    name: json.loads((FOLDER / "engine" / f"{name}.avsc").read_text(encoding="utf-8"))
    for name in ("decision", "writes")
}
# Lengths on both sides of one and two bytes of a length, and of the table.
BYTES = st.one_of(st.binary(max_size=70), st.sampled_from([b"x" * length for length in (63, 64, 255, 256, 8191, 8192)]))
OPTIONAL = st.none() | BYTES
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=70), OPTIONAL), min_size=1, max_size=3)
PARTITIONS = st.none() | st.integers(0, 2**31 - 1)
WRITES = st.lists(st.tuples(st.text(max_size=70), PARTITIONS, OPTIONAL, OPTIONAL, HEADERS), max_size=5)
# As a pipeline has them: a few topics, and nearly always one header, of one name.
FEW = st.sampled_from(["", "a", "ab", "b"])
SOURCES = st.none() | st.lists(st.tuples(FEW, OPTIONAL), min_size=1, max_size=2)
ALIKE = st.lists(st.tuples(FEW, st.none() | st.integers(0, 1), OPTIONAL, OPTIONAL, SOURCES), max_size=12)
STATES = st.lists(st.tuples(BYTES, OPTIONAL), max_size=5)


def read(name: str, data: bytes) -> Any:
    """By fastavro, to the last byte."""
    buffer = io.BytesIO(data)
    found = fastavro.schemaless_reader(buffer, SCHEMAS[name], None)
    assert not buffer.read()
    return found


def avro(write: Write) -> dict[str, Any]:
    topic, partition, key, value, headers = write
    listed = [{"name": name, "value": content} for name, content in headers or ()]
    at = -1 if partition is None else partition
    return {"topic": topic, "partition": at, "key": key, "value": value, "headers": listed}


@given(WRITES | ALIKE)
def test_writes_are_avro_both_ways(writes: list[Write]) -> None:
    data = encode_writes(writes)
    assert read("writes", data) == [avro(write) for write in writes]
    assert decode_writes(data) == writes
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, SCHEMAS["writes"], [avro(write) for write in writes])
    assert decode_writes(buffer.getvalue()) == writes


def test_writes_in_blocks_with_a_size_are_read() -> None:
    """Avro allows an array to come in several blocks, each with its size, for who skips it."""
    one, two = ("a", None, b"k", None, None), ("b", 3, None, b"v", [("h", b"1")])
    parts = [encode_writes([write])[1:-1] for write in (one, two)]
    blocks = b"".join(b"\x01" + bytes([len(part) << 1]) + part for part in parts)
    assert read("writes", blocks + b"\x00") == [avro(one), avro(two)]
    assert decode_writes(blocks + b"\x00") == [one, two]


def test_what_writes_have_in_common_changes() -> None:
    """Where they go, and the name of their only header."""
    writes: list[Write] = [
        (topic, partition, b"k", b"v", [(name, b"1")])
        for topic, partition, name in (
            ("a", None, "h"),
            ("a", None, "i"),
            ("b", None, "i"),
            ("b", 1, "h"),
            ("a", None, "h"),
        )
    ]
    data = encode_writes(writes)
    assert read("writes", data) == [avro(write) for write in writes]
    assert decode_writes(data) == writes


def test_headers_in_blocks_are_read() -> None:
    """The second write begins as the first one does, and goes on where that ended."""
    one, two = ("a", None, b"k", b"v", [("h", b"1")]), ("a", None, b"k", b"v", [("h", b"1"), ("i", None)])
    first = encode_writes([one])[1:-1]
    second = first[:-1] + b"\x02\x02i\x00\x00"  # a block more, of one header
    data = b"\x04" + first + second + b"\x00"
    assert read("writes", data) == [avro(one), avro(two)]
    assert decode_writes(data) == [one, two]


@given(WRITES, STATES, st.integers(0, 2**40), st.text(max_size=70))
def test_a_proposal_is_avro(
    writes: list[Write], states: list[tuple[bytes, bytes | None]], version: int, log_id: str
) -> None:
    body = Body(Counts(1, 2, 3, 4), states, encode_writes(writes), 77)
    proposal = Proposal(5, version, {"t": Range("id", 1, 9)}, "me", body, Kind.STEP, log_id)
    value = AvroProposals().encode(proposal)
    stream = io.BytesIO(value[1:])
    found: Any = fastavro.schemaless_reader(stream, SCHEMAS["decision"], None)
    assert fastavro.schemaless_reader(stream, "string", None) == log_id
    assert not stream.read()
    assert (found["task"], found["version"], found["ticked_ms"], found["note"]) == (5, version, 77, b"")
    assert [(state["key"], state["value"]) for state in found["states"]] == states
    assert AvroProposals().decode(value) == proposal


@given(
    STATES, st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 2, 3, 4, 126, 127, 128, 129, 255])), max_size=4)
)
def test_what_is_no_record_is_none_to_both(
    states: list[tuple[bytes, bytes | None]], changed: list[tuple[float, int]]
) -> None:
    """Who wins is the same for all who read, also for one that leaves all of it to fastavro."""
    value = bytearray(AvroProposals().encode(Proposal(5, 7, {}, "me", Body(Counts(), states, b"writes"), log_id="log")))
    for place, byte in changed:
        value[1 + int(place * (len(value) - 2))] = byte
    assert AvroProposals().decode(bytes(value)) == by_fastavro(bytes(value))


@pytest.mark.parametrize("branch", [b"\x01", b"\x03", b"\x04", b"\x05", b"\x06", b"\x80\x00", b"\x82\x00", b"\x86\x00"])
def test_a_state_that_is_neither_null_nor_bytes_is_none_to_both(branch: bytes) -> None:
    """Two of these are null and bytes, in one byte more than that takes, and fastavro takes two for them that are negative."""
    body = Body(Counts(), [(b"key", b"value"), (b"next", None)], b"writes")
    value = AvroProposals().encode(Proposal(5, 7, {}, "me", body, log_id="log"))
    other = value.replace(b"key\x02", b"key" + branch)
    assert other != value
    assert AvroProposals().decode(other) == by_fastavro(other)


@pytest.mark.parametrize(
    "length", [b"\x86" + b"\x80" * more + b"\x00" for more in (0, 8, 9, 10, 20)] + [b"\x80" * 64 + b"\x06"]
)
def test_a_length_in_more_bytes_than_it_needs_is_the_same_to_both(length: bytes) -> None:
    """Beyond ten bytes fastavro goes round in 64 bits."""
    value = AvroProposals().encode(
        Proposal(5, 7, {}, "me", Body(Counts(), [(b"key", b"value")], b"writes"), log_id="log")
    )
    other = value.replace(b"\x06key", length + b"key")
    found = AvroProposals().decode(other)
    assert found == by_fastavro(other)
    assert isinstance(found, Proposal)
    assert found.body.states == [(b"key", b"value")]


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (b"\x06key", b"\x07key"),  # a negative length, in one byte, and in two
        (b"\xc8\x01", b"\xc9\x01"),
        (b"\x04\x06key", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x04\x06key"),  # a block of -2^63 before
        (b"\x04\x06key", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x06key"),  # and alone
        (b"\x04\x06key", b"\x03\x00\x06key"),  # with a size
        (b"\x04\x06key", b"\x82" + b"\x80" * 8 + b"\x02\x06key"),
        (b"\x06key", b"\xff" * 100_000 + b"key"),
        (b"\x0cwrites", b"\x8c" + b"\x80" * 8 + b"\x02writes"),
        (b"\x06log", b"\x86" + b"\x80" * 8 + b"\x02log"),
        (b"\x06log", b"\x06lo"),
    ],
)
def test_what_nobody_writes_is_the_same_to_both(written: bytes, instead: bytes) -> None:
    body = Body(Counts(), [(b"key", b"v" * 100), (b"next", None)], b"writes")
    value = AvroProposals().encode(Proposal(5, 7, {}, "me", body, log_id="log"))
    assert value.count(written) == 1
    other = value.replace(written, instead)
    assert AvroProposals().decode(other) == by_fastavro(other)


def test_a_note_that_is_nested_too_deep_is_none() -> None:
    value = AvroProposals().encode_note(Note(5, "me", {"published": 7}))
    deep = b"[" * 100_000
    assert AvroProposals().decode(value.replace(encode_bytes(b'{"published": 7}'), encode_bytes(deep))) is None


@pytest.mark.parametrize("branch", [b"\x05", b"\x06", b"\x86\x00"])
def test_a_write_whose_value_is_neither_null_nor_bytes_is_none(branch: bytes) -> None:
    data = encode_writes([("a", None, b"k", b"value", None)])
    with pytest.raises(IndexError):
        decode_writes(data.replace(b"\x02\x0avalue", branch + b"\x0avalue"))
    with pytest.raises(IndexError):
        decode_writes(data.replace(b"\x02\x02k", b"\x02\x03k"))


def by_fastavro(value: bytes) -> Proposal | Note | None:
    stream = io.BytesIO(value[1:])
    try:
        found: Any = fastavro.schemaless_reader(stream, SCHEMAS["decision"], None)
        at_end = stream.tell() == len(value) - 1
        log_id: Any = "" if at_end else fastavro.schemaless_reader(stream, "string", None)
        if found["kind"] == "note":
            return Note(found["task"], found["proposer"], {**json.loads(found["note"])}, log_id)
        states = [(state["key"], state["value"]) for state in found["states"]]
        inputs = {one["topic"]: Range(one["topic_id"], one["start"], one["end"]) for one in found["inputs"]}
        body = Body(Counts(*found["counts"]), states, found["writes"], found["ticked_ms"])
        kind = Kind(found["kind"])
        return Proposal(found["task"], found["version"], inputs, found["proposer"], body, kind, log_id)
    except (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, MemoryError):
        return None


def test_a_record_of_an_onefold_that_named_no_log_is_read() -> None:
    """It ended one byte before the empty name."""
    body = Body(Counts(), [(b"key", b"value")], encode_writes([]))
    proposal = Proposal(5, 7, {"t": Range("id", 1, 9)}, "me", body)
    note = Note(5, "me", {"published": 7})
    assert AvroProposals().decode(AvroProposals().encode(proposal)[:-1]) == proposal
    assert AvroProposals().decode(AvroProposals().encode_note(note)[:-1]) == note
    named = note._replace(log_id="log")
    assert AvroProposals().decode(AvroProposals().encode_note(named)) == named


def test_a_name_that_is_cut_is_no_record() -> None:
    proposal = Proposal(5, 7, {"t": Range("id", 1, 9)}, "me", Body(Counts(), [], encode_writes([])), log_id="a log")
    assert AvroProposals().decode(AvroProposals().encode(proposal)[:-1]) is None


@pytest.mark.parametrize("cut", [1, 5, 9, 12])
def test_writes_that_end_too_soon_are_none(cut: int) -> None:
    data = encode_writes([("topic", None, b"key", b"value", [("name", b"content")])])
    with pytest.raises(IndexError):
        decode_writes(data[:cut])
