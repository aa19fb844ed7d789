"""Every spelling that Avro's specification has is taken, by judge and judged alike; after any change to its bytes both agree.

The bytes are made here from the specification alone: neither side's reader, and no library's writer.
"""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onefold.processor.core.errors import Rejected
from onefold.processor.io import avro_reader, schemas
from onefold.processor.io.serde import _read
from onefold.verify import avro, encoding

pytestmark = pytest.mark.promise("avro-spellings")

#: Draws from a strategy.
Draw = Callable[[Any], Any]
SMALL = st.integers(0, 3)


def varint(number: int, padding: int = 0) -> bytes:
    zigzag = number << 1 if number >= 0 else ~(number << 1)
    data: list[int] = []
    while zigzag > 0x7F or not data:
        data.append(zigzag & 0x7F)
        zigzag >>= 7
    if zigzag or len(data) == 0:
        data.append(zigzag)
    data += [0] * padding
    return bytes([byte | 0x80 for byte in data[:-1]] + data[-1:])


def spelled_int(draw: Draw, number: int, bits: int) -> bytes:
    longest = bits // 7 + 1
    shortest = len(varint(number))
    return varint(number, draw(st.one_of(st.just(0), st.integers(0, longest - shortest))))


def blocks(draw: Draw, items: list[bytes]) -> bytes:
    """The items in blocks of any size, each with its size in bytes or without."""
    data = b""
    while items:
        many = draw(st.integers(1, len(items)))
        block, items = b"".join(items[:many]), items[many:]
        if draw(st.booleans()):
            data += spelled_int(draw, -many, 64) + spelled_int(draw, len(block), 64) + block
        else:
            data += spelled_int(draw, many, 64) + block
    return data + spelled_int(draw, 0, 64)


class Kinds:
    """Schemas and values of them, with bytes; named types are numbered."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"N{self.names}"

    def schema(self, depth: int, *, item: bool = False) -> Any:
        """`item`: a type that takes at least a byte."""
        kinds = ["boolean", "int", "long", "float", "double", "bytes", "string", "enum", "fixed"]
        kinds += [] if item else ["null"]
        kinds += ["array", "map", "record", "union"] if depth else []
        match self.draw(st.sampled_from(kinds)):
            case "enum":
                return {"type": "enum", "name": self.name(), "symbols": ["a", "b", "c"]}
            case "fixed":
                return {"type": "fixed", "name": self.name(), "size": self.draw(st.integers(1, 3))}
            case "array":
                return {"type": "array", "items": self.schema(depth - 1, item=True)}
            case "map":
                return {"type": "map", "values": self.schema(depth - 1)}
            case "record":
                many = self.draw(st.integers(1, 3))
                kinds = [self.schema(depth - 1, item=item and not n) for n in range(many)]
                fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]
                return {"type": "record", "name": self.name(), "fields": fields}
            case "union":
                branches = [self.schema(0) for _ in range(self.draw(st.integers(1, 3)))]
                seen = {json.dumps(branch) if isinstance(branch, str) else branch["name"] for branch in branches}
                assume(len(seen) == len(branches))
                return branches
            case primitive:
                return primitive

    def value(self, schema: Any) -> tuple[Any, bytes]:
        draw = self.draw
        if isinstance(schema, list):
            index = draw(st.integers(0, len(schema) - 1))
            value, data = self.value(schema[index])
            return value, spelled_int(draw, index, 32) + data
        match schema if isinstance(schema, str) else schema["type"]:
            case "null":
                return None, b""
            case "boolean":
                value = draw(st.booleans())
                return value, b"\1" if value else b"\0"
            case "int":
                value = draw(st.one_of(SMALL, st.integers(-(2**31), 2**31 - 1)))
                return value, spelled_int(draw, value, 32)
            case "long":
                value = draw(st.one_of(SMALL, st.integers(-(2**63), 2**63 - 1)))
                return value, spelled_int(draw, value, 64)
            case "float":
                value = draw(st.floats(width=32))
                return value, struct.pack("<f", value)
            case "double":
                value = draw(st.floats())
                return value, struct.pack("<d", value)
            case "bytes":
                value = draw(st.binary(max_size=4))
                return value, spelled_int(draw, len(value), 64) + value
            case "string":
                value = draw(st.text(max_size=4))
                return value, spelled_int(draw, len(value.encode()), 64) + value.encode()
            case "enum":
                index = draw(st.integers(0, 2))
                return "abc"[index], spelled_int(draw, index, 32)
            case "fixed":
                value = draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
                return value, value
            case "array":
                items = [self.value(schema["items"]) for _ in range(draw(SMALL))]
                return [value for value, _ in items], blocks(draw, [data for _, data in items])
            case "map":
                entries = {key: self.value(schema["values"]) for key in draw(st.sets(st.text(max_size=2), max_size=3))}
                spelled = [
                    spelled_int(draw, len(k.encode()), 64) + k.encode() + data for k, (_, data) in entries.items()
                ]
                return {key: value for key, (value, _) in entries.items()}, blocks(draw, spelled)
            case "record":
                parts = {field["name"]: self.value(field["type"]) for field in schema["fields"]}
                return {name: value for name, (value, _) in parts.items()}, b"".join(data for _, data in parts.values())
        raise AssertionError(schema)


@st.composite
def spelled(draw: Any) -> tuple[Any, Any, bytes]:
    """A schema, a value of it, and one of the value's spellings."""
    kinds = Kinds(draw)
    schema = kinds.schema(3)
    return schema, *kinds.value(schema)


def both(schema: Any, body: bytes) -> tuple[str | None, str | None]:
    """What the processor and what the judge read, as texts, in which NaN is NaN; None for what they refuse."""
    text = json.dumps(schema)
    try:
        theirs = repr(_read(body, 0, schemas.parse(1, text), None))
    except Rejected:
        theirs = None
    try:
        mine = repr(avro.read(body, avro.schema(text)))
    except avro.InvalidSchema:
        mine = None
    return theirs, mine


@settings(max_examples=4 * settings().max_examples)
@given(spelled())
def test_every_spelling_of_a_value_is_read_as_that_value(made: tuple[Any, Any, bytes]) -> None:
    schema, value, body = made
    assert both(schema, body) == (repr(value),) * 2


@settings(max_examples=4 * settings().max_examples)
@given(spelled(), st.data())
def test_both_agree_on_a_body_that_was_changed(made: tuple[Any, Any, bytes], data: st.DataObject) -> None:
    schema, _, body = made
    at = data.draw(st.integers(0, len(body)))
    byte = data.draw(st.sampled_from([b"", b"\0", b"\1", b"\2", b"\3", b"\x7f", b"\x80", b"\xc0", b"\xff"]))
    changed = body[:at] + byte + body[at + data.draw(st.integers(0, 1)) :]
    theirs, mine = both(schema, changed)
    assert theirs == mine


@settings(max_examples=2 * settings().max_examples)
@given(spelled(), st.data())
def test_neither_takes_a_body_that_is_cut_off_or_goes_on(made: tuple[Any, Any, bytes], data: st.DataObject) -> None:
    schema, _, body = made
    assert both(schema, body + data.draw(st.binary(min_size=1, max_size=3))) == (None, None)
    if body:
        assert both(schema, body[: data.draw(st.integers(0, len(body) - 1))]) == (None, None)


LONGS = {"type": "array", "items": "long"}
ENUM = {"type": "enum", "name": "E", "symbols": ["a", "b"]}


@pytest.mark.parametrize(
    ("schema", "body", "reason"),
    [
        ("boolean", b"\2", "a boolean is the byte 2, neither 0 nor 1"),
        ("long", b"\2\0", "1 bytes more than its value"),
        ("long", b"\x80", "cut off"),
        ("double", b"\0" * 7, "cut off"),
        ("long", b"\x80" * 10 + b"\0", "a number of 64 bits has more than 10 bytes"),
        ("long", b"\xff" * 9 + b"\3", "a number does not fit into 64 bits"),
        ("int", varint(2**31), "a number does not fit into 32 bits"),
        ("int", b"\x80" * 5 + b"\0", "a number of 32 bits has more than 5 bytes"),
        (ENUM, b"\4", "an enum of 2 symbols has no symbol 2"),
        (ENUM, b"\1", "an enum of 2 symbols has no symbol -1"),
        (["null", "long"], b"\4", "a union of 2 types has no type 2"),
        ("string", b"\1", "a length is -1"),
        ("string", varint(2**62) + b"x", "cut off"),
        ("string", b"\2\xff", "can't decode byte 0xff"),
        ("string", b"\6\xed\xa0\x80", "can't decode byte 0xed"),
        (LONGS, varint(2**62) + b"\0\0", "cut off"),
        (LONGS, varint(-(2**63)) + b"\0", "cut off"),
        (LONGS, b"\3\2\2\2\0", "take 1 bytes more than its size"),
        (LONGS, b"\1\4\2\0", "take 1 bytes less than its size"),
        (LONGS, b"\1\1\2\0", "a block has a size of -1 bytes, and 2 follow"),
        (LONGS, b"\1\x0a\2\0", "a block has a size of 5 bytes, and 2 follow"),
        (LONGS, b"\2\2", "cut off"),
        ({"type": "map", "values": "long"}, b"\2\2k\2\2\2k\4\0", "a map has the key 'k' twice"),
    ],
)
def test_what_the_specification_does_not_have_is_refused_with_a_reason(schema: Any, body: bytes, reason: str) -> None:
    assert both(schema, body) == (None, None)
    with pytest.raises(Rejected, match=reason):
        _read(body, 0, schemas.parse(1, json.dumps(schema)), None)


class Watched(bytes):
    """Counts how often one of its bytes is read."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += len(range(len(self))[at]) if isinstance(at, slice) else 1
        return super().__getitem__(at)


def test_a_number_without_an_end_is_given_up_soon() -> None:
    """A mebibyte of one would take the square of its length."""
    for read in (avro_reader.writer("long").read, encoding.reader("long")):
        body = Watched(b"\x80" * 1000)
        with pytest.raises(ValueError, match="number"):
            read(body, 0)
        assert body.reads < 30
