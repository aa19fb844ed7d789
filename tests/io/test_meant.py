"""What a contract means that its bytes do not say: defaults and units. Judge and judged alike."""

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.io import contracts, schemas, serde, time_units
from onefold.verify import avro, decode
from onefold.verify import contracts as proof_contracts

MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}
A = {"name": "a", "type": "string"}


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "namespace": "s", "topics": ["t.t"], "fields": [*fields]}


def load(folder: Path, *fields: dict[str, Any]) -> tuple[contracts.RecordSchema, proof_contracts.VerifiedSchema]:
    (folder / "r.avsc").write_text(json.dumps(record(*fields)), encoding="utf-8")
    return contracts.load(folder)["t.t"], proof_contracts.load(folder)["t.t"]


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "abcd", b"abcd"),
        (["bytes", "null"], "\xff", b"\xff"),
        ({"type": "fixed", "name": "X", "size": 3}, "abc", b"abc"),
        (DECIMAL, "1", Decimal("0.49")),
        (DECIMAL, (10**37 + 1).to_bytes(16, "big").decode("latin-1"), Decimal(f"{10**37 + 1}E-2")),
        ({"type": "array", "items": "string"}, ["q"], ["q"]),
        ({"type": "map", "values": "bytes"}, {"x": "abcd"}, {"x": b"abcd"}),
        ("double", 1, 1.0),
    ],
)
def test_a_field_that_is_not_there_has_one_value_in_every_spelling(
    kind: Any, default: Any, value: Any, tmp_path: Path
) -> None:
    ours, judges = load(tmp_path, A, {"name": "b", "type": kind, "default": default})
    writer, body = json.dumps(record(A)), b"\2x"
    resolved = serde._convert(ours, serde._read(body, 0, schemas.parse(1, writer), ours.reader)).b
    spelled = serde._json_decoders(ours)[0](b'{"a":"x"}').b
    theirs = decode._fields_of(judges)(decode._read_avro(body, avro.schema(writer), judges.reader).items())["b"]
    assert {repr(found) for found in (resolved, spelled, theirs)} == {repr(value)}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([("ts", MICROS)], [("at", MILLIS)]),  # by an alias
        (
            [("b", {**ADDRESS, "fields": [{"name": "at", "type": MICROS}]}), ("a", "Address")],
            [("a", {**ADDRESS, "fields": [{"name": "at", "type": MILLIS}]}), ("b", "Address")],
        ),
        (  # in a type that a union defines which the other side does not have
            [("b", ["null", {**ADDRESS, "fields": [{"name": "at", "type": MICROS}]}]), ("a", "Address")],
            [("a", {**ADDRESS, "fields": [{"name": "at", "type": MILLIS}]})],
        ),
    ],
)
def test_other_units_are_seen_however_fields_and_types_are_called(
    written: list[tuple[str, Any]], read: list[tuple[str, Any]], tmp_path: Path
) -> None:
    ours, judges = load(
        tmp_path, *({"name": name, "type": kind, "aliases": ["ts"] * (name == "at")} for name, kind in read)
    )
    writer = json.dumps(record(*({"name": name, "type": kind} for name, kind in written)))
    assert "is a timestamp-micros" in time_units.other(schemas.parse(1, writer).counted, ours.writer.counted)
    assert not avro.same_units(avro.schema(writer), judges.written)


def test_a_type_is_used_twice_within_a_nested_record(tmp_path: Path) -> None:
    order = {
        "type": "record",
        "name": "O",
        "fields": [{"name": "b", "type": ADDRESS}, {"name": "s", "type": "Address"}],
    }
    ours, _ = load(tmp_path, {"name": "order", "type": order})
    assert serde._json_decoders(ours)[0](b'{"order":{"b":{"street":"x"},"s":{"street":"y"}}}').order.s.street == "y"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (["string", {"type": "array", "items": "int"}], "string or array, a text and a list"),
        ([ADDRESS, {"type": "map", "values": "int"}], "s.Address or map, JSON does not tell"),
        (["null", DECIMAL, "string"], "bytes or string, JSON does not tell"),
    ],
)
def test_a_union_that_cannot_be_read_is_one_sentence(kind: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=says):
        load(tmp_path, {"name": "a", "type": kind})


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("double", "1e999"),
        ("double", "NaN"),
        ("float", "1e300"),
        ('{"type":"int","logicalType":"date"}', "2147483647"),
        ('{"type":"long","logicalType":"timestamp-millis"}', "4611686018427387904"),
        ("string", r'"a\u0000b"'),
    ],
)
def test_a_default_that_no_value_has_is_one_sentence(kind: str, default: str, tmp_path: Path) -> None:
    kind = kind if kind.startswith("{") else f'"{kind}"'
    field = f'{{"name":"a","type":{kind},"default":{default}}}'
    text = f'{{"type":"record","name":"R","topics":["t.t"],"fields":[{field}]}}'
    (tmp_path / "r.avsc").write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=r"r\.avsc"):
        contracts.load(tmp_path)


def test_a_decimal_of_a_field_that_the_contract_lacks_is_judged_too(tmp_path: Path) -> None:
    short = {**DECIMAL, "precision": 4}
    ours, judges = load(tmp_path, A)
    writer = record(A, {"name": "price", "type": short})
    body = io.BytesIO()
    plain = record(A, {"name": "price", "type": "bytes"})
    fastavro.schemaless_writer(body, fastavro.parse_schema(plain), {"a": "x", "price": (10**6).to_bytes(4, "big")})
    with pytest.raises(Rejected, match="more than 4 digits"):
        serde._read(body.getvalue(), 0, schemas.parse(1, json.dumps(writer)), ours.reader)
    with pytest.raises(avro.InvalidSchema):
        avro.read(body.getvalue(), avro.schema(json.dumps(writer)), judges.reader)
