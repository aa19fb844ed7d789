"""Judge and judged take the same schemas of a registry and the same Avro bodies, and read the same from them."""

import io
import json
import random
import struct
from typing import Any

import fastavro
import pytest

from onefold.processor.apps import trades as trades_app
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Record
from onefold.processor.io import contracts as processor_contracts
from onefold.processor.io import schemas
from onefold.processor.io.logical import carried
from onefold.processor.io.serde import AvroCodec, _read
from onefold.verify import avro
from onefold.verify.contracts import contracts
from onefold.verify.decode import Inadmissible, decode
from onefold.workloads import trades
from tests.io.test_registry import HONEST, UNSAFE

ATOMS = ["null", "long", "string", "bytes", "double", "float", "int", "R", "n.R", "null", "record", "decimal", "", ".R",
         0, 1, -1, 2.5, 10**400, True, None, [], {}, ["null"], ["A", "B"]]  # fmt: skip
KEYS = ["type", "name", "fields", "items", "size", "logicalType", "precision", "scale", "default", "namespace", "aliases",
        "__fastavro_parsed", "__named_schemas"]  # fmt: skip
NAMES = ["R", "Q", "n.R", "null", "A"]


def odd(chance: random.Random, depth: int) -> Any:
    """A schema, or nearly one."""
    if depth == 0 or chance.random() < 0.25:
        return chance.choice(ATOMS)
    if chance.random() < 0.1:
        return [odd(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    kind = chance.choice(["record", "enum", "fixed", "array", "map", "bytes", "string", "long", odd(chance, depth - 1)])
    schema: dict[str, Any] = {"type": kind, "name": chance.choice(NAMES)}
    if kind == "record":
        kinds = [odd(chance, depth - 1) for _ in range(chance.randint(0, 3))]
        schema["fields"] = [{"name": f"f{n}", "type": kind, "default": 0} for n, kind in enumerate(kinds)]
        for field in schema["fields"]:
            if chance.random() < 0.8:
                del field["default"]
    schema["symbols"] = chance.choice([["A", "B"], "AB", 5, [1]])
    schema["size"] = chance.choice([0, 1, 4, 300, -1, "5", 2.5, 10**400])
    schema["items"], schema["values"] = odd(chance, depth - 1), odd(chance, depth - 1)
    if kind in ("bytes", "fixed") and chance.random() < 0.5:
        schema["logicalType"] = "decimal"
        schema["precision"], schema["scale"] = (
            chance.choice([1, 4, 18, True, "a", 10**9]),
            chance.choice([0, 2, None, -1, 10**8]),
        )
    if chance.random() < 0.3:
        schema[chance.choice(KEYS)] = odd(chance, 1)
    return schema


def taken(text: str) -> tuple[Any, Any]:
    """What the processor and what the judge make of a schema; None for one that they refuse."""
    try:
        theirs = schemas.parse(1, text)
    except Rejected:
        theirs = None
    try:
        mine = avro.schema(text)
    except avro.Refused:
        mine = None
    return theirs, mine


def values(writers: tuple[Any, Any], body: bytes) -> tuple[str | None, str | None]:
    """What both read: spelled out, since a float may be no number, which is not equal to itself."""
    try:
        theirs = repr(_read(body, 0, writers[0], None))
    except Rejected:
        theirs = None
    try:
        mine = repr(avro.read(body, writers[1]))
    except avro.Refused:
        mine = None
    return theirs, mine


@pytest.mark.parametrize("text", UNSAFE)
def test_both_refuse_a_schema_that_is_not_safe(text: str) -> None:
    assert taken(text) == (None, None)


@pytest.mark.parametrize("schema", HONEST)
def test_both_take_an_honest_schema(schema: Any) -> None:
    theirs, mine = taken(json.dumps(schema))
    assert theirs is not None
    assert mine is not None
    assert carried(theirs.schema) == carried(mine.wire)


def test_on_odd_schemas_and_on_bytes_read_with_them() -> None:
    counts = {"refused": 0, "taken": 0, "read": 0}
    for seed in range(5000):
        chance = random.Random(seed)
        text = json.dumps(odd(chance, 4))
        both = taken(text)
        assert (both[0] is None) == (both[1] is None), text
        counts["refused" if both[0] is None else "taken"] += 1
        for _ in range(4 if both[0] else 0):
            body = bytes(
                chance.choice([0, 1, 2, 4, 128, 255, chance.randrange(256)]) for _ in range(chance.randint(0, 6))
            )
            theirs, mine = values(both, body)
            assert theirs == mine, (text, body)
            counts["read"] += theirs is not None
    assert min(counts.values()) > 300, counts


FIRST_FIELDS = ["null", "boolean", "long", "float", "double", "string", [], ["null"], ["null", "long"], ["double", "float"],
                {"type": "fixed", "name": "F", "size": 0}, {"type": "fixed", "name": "F", "size": 5},
                {"type": "enum", "name": "E", "symbols": ["a"]}, {"type": "array", "items": "long"}]  # fmt: skip


@pytest.mark.parametrize("whole", ["array", "map"])
@pytest.mark.parametrize("first", FIRST_FIELDS, ids=str)
def test_on_how_many_values_without_bytes_an_item_may_have(first: Any, whole: str) -> None:
    """Beside one field that may take some bytes. Both draw the bound at the same number."""
    found = []
    for nulls in range(50):
        fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate([first, *["null"] * nulls])]
        item = {"type": "record", "name": "R", "fields": fields}
        theirs, mine = taken(json.dumps({"type": whole, "items" if whole == "array" else "values": item}))
        assert (theirs is None) == (mine is None), nulls
        found.append(mine is not None)
    assert found == sorted(found, reverse=True), "more than the most are never taken again"
    assert not found[-1]


def test_on_the_branch_that_was_written_of_records_that_look_alike() -> None:
    field = {"name": "f", "type": "long"}
    look_alike = [{"type": "record", "name": name, "fields": [field]} for name in "AB"]
    both = taken(json.dumps(look_alike))
    for body in (b"\0\2", b"\2\2"):
        assert values(both, body) == ("{'f': 1}",) * 2
    assert values(both, b"\4\2") == (None, None)


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("long", b"\2"),
        (["null", "long"], b"\0"),
        ({"type": "record", "name": "Trade", "fields": [{"name": "Version", "type": ["null", "long"]}]}, b"\0"),
        ({"type": "record", "name": "Trade", "fields": [{"name": "Version", "type": "string"}]}, b"\2x"),
    ],
)
def test_on_a_sound_body_that_the_contract_cannot_be_read_from(schema: Any, body: bytes) -> None:
    both = taken(json.dumps(schema))
    assert None not in values(both, body)
    with pytest.raises(Rejected):
        _read(body, 0, both[0], processor_contracts.load()[trades.TOPIC].schema)
    with pytest.raises(avro.Refused):
        avro.read(body, both[1], contracts()[trades.TOPIC].schema)


def length_of(value: bytes) -> bytes:
    length = io.BytesIO()
    fastavro.schemaless_writer(length, "long", len(value))
    return length.getvalue()


SPELLED = [b"", b"\0", b"\xff", b"\x80", b"\x7f", b"\xff\x80", b"\xff\x81", b"\0\x80", b"\0\x7f", b"\xff\xff", b"\0\0",
           b"\x80\0", b"\xff\x80\0", b"\xff\x80\1", b"\xff\xff\x80", (10**18 - 1).to_bytes(8, "big"),
           (10**18).to_bytes(8, "big"), (-(10**18)).to_bytes(8, "big", signed=True), *(b"\x7f" * n for n in (255, 256, 257)),
           b"\x7f" * 500_000]  # fmt: skip


@pytest.mark.parametrize("value", SPELLED, ids=lambda value: f"{value[:8].hex()}-{len(value)}")
def test_on_decimals_of_a_contract_and_of_a_registry(value: bytes) -> None:
    contract = contracts()[trades.TOPIC]
    body = b"\x02x" + length_of(value) + value + b"\x02" + struct.pack("<d", 1.0) + b"\x02a\x02b\x02c"
    text = json.dumps(json.loads((processor_contracts.FOLDER / "trades.Trade.avsc").read_text(encoding="utf-8")))
    both = taken(text)

    class Schemas:
        def schema(self, number: int) -> Any:
            return both[0]

    codec = AvroCodec(trades_app.TOPOLOGY, processor_contracts.load(), Schemas())
    found = set()
    for data in (contract.prefix + body, b"\0\0\0\0\1" + body):
        try:
            found.add(codec.decode(Record(trades.TOPIC, 0, 0, None, data)).Value)
        except Rejected:
            found.add(None)
        try:
            found.add(decode(contract, data, lambda number: both[1])["Value"])
        except Inadmissible:
            found.add(None)
    assert len(found) == 1


def test_which_decimals_both_take() -> None:
    """Without the processor's answer: as few bytes as the number needs, or more."""
    kinds = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 0}
    both = taken(json.dumps(kinds))
    for number in [0, 1, *(n for power in (7, 15, 23) for n in range(2**power - 2, 2**power + 3))]:
        for signed in (number, -number):
            fewest = next(n for n in range(1, 9) if -(1 << 8 * n - 1) <= signed < 1 << 8 * n - 1)
            for size in range(fewest, fewest + 3):
                spelled = signed.to_bytes(size, "big", signed=True)
                assert values(both, length_of(spelled) + spelled) == (f"Decimal('{signed}')",) * 2, (signed, size)
    assert values(both, length_of(b"")) == (None, None)


def test_a_decimal_has_a_scale_that_a_decimal_can_have() -> None:
    for scale, expected in ((617, "Decimal('5E-617')"), (618, None)):
        both = taken(json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": scale}))
        assert values(both, b"\2\5") == (expected, expected)


def test_a_long_decimal_is_refused_before_it_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []

    def convert(data: bytes) -> int:
        converted.append(len(data))
        return int.from_bytes(data, "big")

    monkeypatch.setattr(avro, "_integer", convert)
    both = taken(json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 1000}))
    for size in (256, 257, 100_000):
        value = b"\x7f" * size
        assert (values(both, length_of(value) + value)[1] is None) == (size > 256)
    assert converted == [256]
