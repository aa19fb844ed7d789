"""The judge's own way through an Avro body: it takes what fastavro writes, and reads the same from other spellings of it."""

import io
import random
import struct
from typing import Any

import fastavro
import pytest

from onefold.verify.encoding import Read, reader

# Of each of these fastavro finds the branch again that it has read. An int of more than 32 bits is one to fastavro.
CERTAIN: list[Any] = [
    "boolean",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    ["null", "long"],
    {"type": "enum", "name": "E", "symbols": ["a", "b"]},
    {"type": "fixed", "name": "F", "size": 2},
    {"type": "array", "items": "string"},
    {"type": "map", "values": "long"},
]
BYTES = [0, 1, 2, 3, 4, 97, 127, 128, 192, 255]


def is_exact(body: bytes, read: Read) -> bool:
    """Is the body exactly one value, as a writer spells it?"""
    try:
        return read(body, 0)[1] == len(body)
    except (ValueError, LookupError, RecursionError, struct.error):
        return False


def written_again(schema: Any, body: bytes) -> bytes | None:
    try:
        value = fastavro.schemaless_reader(io.BytesIO(body), schema)
        again = io.BytesIO()
        fastavro.schemaless_writer(again, schema, value)
    except (ValueError, LookupError, EOFError, TypeError, OverflowError, struct.error):
        return None
    return again.getvalue()


def test_it_takes_all_that_fastavro_writes_and_reads_the_same_from_all_that_it_takes() -> None:
    taken = otherwise = 0
    for seed in range(20_000):
        dice = random.Random(seed)
        fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(dice.sample(CERTAIN, dice.randint(1, 2)))]
        schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
        body = bytes(dice.choice(BYTES) for _ in range(dice.choice([0, 1, 1, 2, 2, 3, 4, 5, 8, 11])))
        exact = is_exact(body, reader(schema))
        again = written_again(schema, body)
        assert exact or again != body, (fields, body)
        otherwise += exact and again != body
        if exact:
            value, end = reader(schema)(body, 0)
            # As texts, in which NaN is NaN and True is not 1.
            assert (repr(value), end) == (repr(fastavro.schemaless_reader(io.BytesIO(body), schema)), len(body)), fields
        taken += exact
    assert taken > 500
    assert otherwise > 10


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        (["bytes", "long"], b"\1"),  # a length below nothing leads back to where the next field fits
        (["string", "long"], b"\1"),
        (["bytes"], b"\4x"),
        ([{"type": "fixed", "name": "F", "size": -1}, "long"], b"\2\2"),
    ],
)
def test_a_length_is_within_the_body(fields: list[Any], body: bytes) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(fields)],
    }
    assert not is_exact(body, reader(schema))
