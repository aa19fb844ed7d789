"""A value of a union is taken whichever branch its writer chose, and in every spelling that Avro has. Judge and judged alike."""

import io
import json
import math
import random
import struct
from typing import Any

import fastavro
import pytest

from onefold.processor.core.errors import Rejected
from onefold.processor.io import schemas
from onefold.processor.io.serde import _read
from onefold.verify import avro


def number(value: int) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, "long", value)
    return body.getvalue()


def chosen(branch: int, body: bytes) -> bytes:
    """A body of the branch with this number."""
    return number(branch) + body


def both(schema: Any, body: bytes) -> tuple[str | None, str | None]:
    """What the processor and what the judge read; None for what they refuse."""
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


ENUM = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
FIXED = {"type": "fixed", "name": "F", "size": 1}
RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
LONGS, INTS = {"type": "array", "items": "long"}, {"type": "array", "items": "int"}
LONGS_BYTES = {"type": "record", "name": "T", "fields": [
    {"name": "f", "type": ["int", LONGS]}, {"name": "g", "type": "bytes"}]}  # fmt: skip
BEYOND_32 = number(2**40)


@pytest.mark.parametrize(
    ("schema", "body", "value"),
    [
        (["int", "long"], chosen(0, number(5)), 5),
        (["int", "long"], chosen(1, number(5)), 5),
        (["int", "long"], chosen(1, BEYOND_32), 2**40),
        (["null", "int", "long"], chosen(2, number(5)), 5),
        (["int", {"type": "long"}], chosen(1, number(5)), 5),
        (["double", "int"], chosen(1, number(5)), 5),
        (["int", "long"], b"\2\x8a\0", 5),  # a number, and a branch, that end in a byte of nothing
        (["int", "long"], b"\x82\0\2", 1),
        (["int", LONGS], b"\2\1\2\2\0", [1]),  # a block with its size
        (["int", LONGS], b"\2\2\2\2\4\0", [1, 2]),  # two blocks
        (["int", "float"], b"\2\1\0\x80\x7f", math.nan),  # a signalling NaN
        (["float", "double"], chosen(0, struct.pack("<f", 0.1)), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ([ENUM, "string"], chosen(1, number(1) + b"a"), "a"),
        (["string", ENUM], chosen(1, number(0)), "a"),
        ([FIXED, "bytes"], chosen(1, number(1) + b"x"), b"x"),
        ([RECORD, {"type": "map", "values": "long"}], chosen(1, number(1) + b"\2a" + number(3) + b"\0"), {"a": 3}),
        ([RECORD, {"type": "map", "values": "R"}], chosen(1, number(1) + b"\2k" + number(3) + b"\0"), {"k": {"a": 3}}),
        (["null", {"type": "array", "items": ["int", "long"]}], chosen(1, number(2) + b"\2\2\0\2\0"), [1, 1]),
        ([{"type": "map", "values": "int"}, LONGS], chosen(1, number(1) + BEYOND_32 + b"\0"), [2**40]),
        (
            {"type": "record", "name": "B", "namespace": "n", "fields": [
                {"name": "x", "type": ["int", "long"], "default": 0}, {"name": "y", "type": ["string", FIXED]}]},
            chosen(1, number(7)) + chosen(1, b"z"), {"x": 7, "y": b"z"},
        ),
        # A name that the program might give to a branch is one that a schema may have for itself.
        (
            {"type": "record", "name": "B", "fields": [
                {"name": "x", "type": [{**RECORD, "name": "Branch0"}, "int", "long"]},
                {"name": "y", "type": "Branch0"}]},
            chosen(1, number(5)) + number(6), {"x": 5, "y": {"a": 6}},
        ),
    ],
)  # fmt: skip
def test_a_value_is_taken_in_whichever_branch_it_was_written(schema: Any, body: bytes, value: Any) -> None:
    assert both(schema, body) == (repr(value),) * 2


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (["int", "long"], b"\2" + b"\x80" * 10 + b"\0"),  # more bytes than a long has
        (["int", "long"], b"\0" + b"\x80" * 5 + b"\0"),  # more bytes than an int has
        (["int", "long"], b"\0" + BEYOND_32),  # an int beyond 32 bits
        (["int", "long"], b"\2" + b"\xff" * 9 + b"\3"),  # beyond 64 bits
        (["int", "long"], b"\2\2\0"),  # something after it
        (["int", "long"], b"\2"),  # cut off
        (["int", "long"], b"\1\2"),  # no such branch: -1
        (["int", "long"], b"\4\2"),  # nor 2
        (["boolean", "int", "long"], b"\0\2"),  # a boolean of two
        ([ENUM, "string"], b"\2\3"),  # a text of less than nothing
        ([ENUM, "string"], b"\0\1"),  # the last symbol but for its sign
        ([FIXED, "string"], b"\2\2\xff"),  # not UTF-8
        (["int", LONGS], b"\2\1\4\2\0"),  # a block with a size of one byte too many
        (["int", LONGS], b"\2\1\0\2\0"),  # a block with a size of one byte too few
        (LONGS_BYTES, b"\2\1\0\4\0\0"),  # a block with a size of none, where what follows fits to that
        (["int", LONGS], b"\2\1\1\2\0"),  # a block with a size of less than nothing
        (["int", {"type": "map", "values": "long"}], b"\2\4\2a\2\2a\4\0"),  # a key that is there twice
    ],
)
def test_what_avro_does_not_have_is_refused_in_every_branch(schema: Any, body: bytes) -> None:
    assert both(schema, body) == (None, None)


BRANCHES: list[Any] = ["null", "boolean", "int", "long", "float", "double", "string", "bytes", ENUM, FIXED, RECORD, LONGS,
                       INTS, {"type": "map", "values": "long"}, {"type": "array", "items": ["null", "int", "float"]}]  # fmt: skip
BYTES = [0, 1, 2, 3, 4, 97, 127, 128, 192, 255]


def test_on_unions_of_all_kinds_and_on_bytes_read_with_them() -> None:
    taken = 0
    for seed in range(3000):
        dice = random.Random(seed)
        picked = dice.sample(BRANCHES, dice.randint(1, 4))
        schema = {"type": "record", "name": "T", "fields": [{"name": "f", "type": picked}]}
        for _ in range(5):
            size = dice.choice([0, 1, 1, 2, 3, 4, 8])
            body = chosen(dice.randrange(len(picked)), bytes(dice.choice(BYTES) for _ in range(size)))
            theirs, mine = both(schema, body)
            assert theirs == mine, (schema, body)
            taken += mine is not None
    assert taken > 1000
