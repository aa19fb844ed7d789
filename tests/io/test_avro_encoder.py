"""The compiled encoder writes what fastavro writes, byte for byte, and refuses what no reader could read back."""

import io
import struct
from collections import OrderedDict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.apps import campaigns, runner, trades
from onefold.processor.io import avro_encoder, contracts
from onefold.processor.io.avro_encoder import compile_record, encoder

PREFIX = b"\xc3\x01prefix.."

# Where the encoder goes from one lookup to two, three, four and on, on both sides of zero.
STEPS = [sign * 2**bits + by for sign in (1, -1) for bits in (6, 13, 27, 41, 55, 62) for by in (-1, 0, 1)]
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(STEPS)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from([64, 4095, 4096, 9000]).map("x".__mul__)
BRANCHES = {
    "long": LONGS,
    "string": TEXTS,
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    ("null", "long"): st.none() | LONGS,
    ("null", "string"): st.none() | TEXTS,
}


def schema_of(kinds: Sequence[object]) -> dict[str, Any]:
    fields = [
        {"name": f"f{number}", "type": list(kind) if isinstance(kind, tuple) else kind}
        for number, kind in enumerate(kinds)
    ]
    parsed = fastavro.parse_schema({"type": "record", "name": "Any", "fields": fields})
    assert isinstance(parsed, dict)
    return parsed


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, object]]:
    kinds = draw(st.lists(st.sampled_from(list(BRANCHES)), min_size=1, max_size=6))
    return schema_of(kinds), {f"f{number}": draw(BRANCHES[kind]) for number, kind in enumerate(kinds)}


@given(records())
def test_it_writes_what_fastavro_writes(case: tuple[dict[str, Any], dict[str, object]]) -> None:
    schema, record = case
    expected = io.BytesIO(PREFIX)
    expected.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(expected, schema, record)

    encode = compile_record(schema, PREFIX)
    assert encode is not None
    assert encode(record) == expected.getvalue()
    assert encode(OrderedDict(record)) == expected.getvalue()
    assert encode(SimpleNamespace(**record)) == expected.getvalue()


@pytest.mark.parametrize("edge", [0, 63, 64, -64, -65, 8191, 8192, -8193, 2**28, 2**63 - 1, -(2**63)])
def test_numbers_at_the_edges_of_a_byte_and_of_the_tables_come_back(edge: int) -> None:
    schema = schema_of(["long"])
    encode = compile_record(schema, b"")
    assert encode is not None
    assert fastavro.schemaless_reader(io.BytesIO(encode({"f0": edge})), schema, None) == {"f0": edge}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", 2**63),
        ("long", -(2**63) - 1),
        ("long", 10**400),
        ("long", -(10**400)),
        ("long", 1.5),
        ("long", "1"),
        ("long", None),
        ("string", "\ud800"),
        ("string", b"bytes"),
        ("string", None),
        ("boolean", 1),
        ("double", "x"),
        (("null", "long"), 2**64),
    ],
)
def test_a_value_that_is_none_of_the_schema_is_refused(kind: object, value: object) -> None:
    encode = compile_record(schema_of([kind]), PREFIX)
    assert encode is not None
    with pytest.raises((ValueError, TypeError, AttributeError, struct.error)):
        encode({"f0": value})


def test_a_missing_field_is_refused_unless_it_may_be_null() -> None:
    fields = [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "long"], "default": None}]
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    encode = compile_record(schema, b"")
    assert encode is not None
    assert encode({"a": 1}) == b"\x02\x00"
    with pytest.raises(KeyError):
        encode({"b": 1})
    with pytest.raises(AttributeError):  # an object has all of them
        encode(SimpleNamespace(a=1))


def test_a_field_may_be_called_what_python_keeps_for_itself() -> None:
    fields = [{"name": name, "type": "long"} for name in ("from", "a b")]
    encode = compile_record(fastavro.parse_schema({"type": "record", "name": "R", "fields": fields}), b"")
    assert encode is not None
    values = {"from": 1, "a b": 2}
    assert encode(values) == encode(SimpleNamespace(**values)) == b"\x02\x04"


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        ({"type": "array", "items": "long"}, [1], b"\x02\x02\x00"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1, b"\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", b"\x00"),
        (["long", "null"], None, b"\x02"),
        (["null", {"type": "map", "values": "string"}], None, b"\x00"),
        ("int", 1, b"\x02"),
    ],
)
def test_what_it_does_not_know_is_left_to_fastavro(kind: object, value: object, data: bytes) -> None:
    fields = [{"name": "f0", "type": kind}]
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    assert compile_record(schema, PREFIX) is None
    assert encoder(schema, PREFIX)({"f0": value}) == PREFIX + data
    assert encoder(schema, PREFIX)(SimpleNamespace(f0=value)) == PREFIX + data


def test_a_missing_field_has_its_default() -> None:
    fields = [{"name": "a", "type": "long", "default": 7}, {"name": "b", "type": "string", "default": "'\\"}]
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    encode = compile_record(schema, b"")
    assert encode is not None
    assert encode({}) == b"\x0e\x04'\\"


def test_the_outputs_of_the_fast_pipelines_are_compiled() -> None:
    """A contract that silently fell back would cost an eighth of the throughput. The bank has enums and decimals, which do."""
    loaded = contracts.load()
    outputs = {topic for app in (runner, campaigns, trades) for topic in app.TOPOLOGY.outputs}
    assert [topic for topic in sorted(outputs) if compile_record(loaded[topic].schema, b"") is None] == []


@pytest.mark.parametrize("kind", ["string", ["null", "string"]])
@given(texts=st.lists(TEXTS, max_size=20))
def test_a_text_of_few_values_is_the_same_the_first_time_and_later(kind: object, texts: list[str]) -> None:
    fields = [{"name": "a", "type": kind}]
    plain = compile_record(fastavro.parse_schema({"type": "record", "name": "R", "fields": fields}), PREFIX)
    hinted = [{**fields[0], "onefold.lowCardinality": True}]
    remembering = compile_record(fastavro.parse_schema({"type": "record", "name": "R", "fields": hinted}), PREFIX)
    assert plain is not None
    assert remembering is not None
    for text in [*texts, *texts]:
        assert remembering({"a": text}) == plain({"a": text})


def test_a_contract_of_ours_says_which_texts_have_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the attribute that the encoder reads: under another name it would say nothing, and nobody would notice."""
    asked: list[str] = []

    def keep(known: dict[str, bytes], text: str) -> bytes:
        asked.append(text)
        return b""

    monkeypatch.setattr(avro_encoder, "_keep", keep)
    encode = compile_record(contracts.load()["trades.deltas"].schema, b"")
    assert encode is not None
    names = "risk_type", "region", "trade_desk"
    numbers = dict.fromkeys(("version", "traded_at", "messages", "value"), 1)
    encode({"trade_id": "t", **numbers, **{name: name for name in names}, "previous_region": "before"})
    assert asked == [*names, "before"]


def test_a_text_that_was_promised_to_have_few_values_remembers_no_more_than_some() -> None:
    known: dict[str, bytes] = {}
    for number in range(5_000):
        assert avro_encoder._keep(known, str(number))[1:] == b"%d" % number
    assert len(known) == 4_096
