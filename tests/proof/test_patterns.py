"""Objects that are read by the pattern of their contract are read as field by field, and what most producers write is."""

import random
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onefold.proof import json_text, patterns
from onefold.proof.contracts import Contract, contract_of, contracts
from onefold.proof.decode import Inadmissible, _default, _fields_of, decode
from onefold.proof.workloads import averages, bank, campaigns, runner, trades
from onefold.proof.workloads.hostile import BROKEN, ODD, Good
from onefold.proof.workloads.shaping import Shape
from tests.support.first_messages import first_messages

_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}
_WAY = {"type": "enum", "name": "Way", "symbols": ["up", "down"]}
_WITHIN = {"type": "record", "name": "Within", "fields": [{"name": "text", "type": "string"}]}
_ALL = contract_of(
    {
        "type": "record",
        "name": "All",
        "namespace": "test",
        "fields": [
            {"name": "long", "type": "long"},
            {"name": "int", "type": "int"},
            {"name": "within", "type": _WITHIN},
            {"name": "double", "type": "double"},
            {"name": "boolean", "type": "boolean"},
            {"name": "decimal", "type": _DECIMAL},
            {"name": "way", "type": _WAY},
            {"name": "maybe", "type": ["null", "double"]},
            {"name": "text", "type": ["null", "string"]},
            {"name": "known", "type": "long", "default": 8},
            {"name": "said", "type": "string", "default": "so"},
            {"name": "none", "type": ["null", "long"], "default": None},
            {"name": "price", "type": _DECIMAL, "default": "\u0002"},
            {"name": "last", "type": "boolean"},
        ],
    }
)
_GOOD = (
    b'{"long": 5, "int": -7, "within": {"text": "a"}, "double": 0.5, "boolean": true, "decimal": 12.50, "way": "up",'
    b' "maybe": null, "text": "b", "last": false}'
)

# Right and wrong ones, near to what a pattern takes.
_NUMBERS = [
    "0", "-0", "1", "-1", "00", "01", "+1", "1.", ".5", "-.5", "0.0", "-0.0", "-0.00", "0.10", "1.0", "12.345", "1e2", "1E2",
    "1e400", "-1.5e-3", "NaN", "Infinity", "\u0661", "2147483647", "2147483648", "-2147483648", "999999999", "1234567890",
    "999999999999999999", "9223372036854775807", "9223372036854775808", "9007199254740993", "9007199254740993.0",
    "0.1000000000000000055511151231257827",
]  # fmt: skip
_OTHERS = [
    "true", "false", "null", "True", '""', '"a"', '"up"', '"down"', '"null"', r'"\u0061"', r'"\u0000"', r'"\ud800"', r'"\""',
    "[]", "{}", "[1]",
]  # fmt: skip
_RAW = ['"\u00e9"', '"\u2028"', '"\x7f"', '"\x01"', '"a\x00b"']
_LITERALS = st.sampled_from([*_NUMBERS, *_OTHERS, *_RAW])
_SPACES = st.sampled_from(["", " ", "\n", "\t", "\r\n", "  ", "\v", "\xa0", "\ufeff", ","])


@st.composite
def _texts(draw: st.DrawFn, fields: list[dict[str, Any]]) -> str:
    """An object of these fields; most are as they should be, some are there twice, or are missing, or out of order."""

    def some_space() -> str:
        return draw(_SPACES) if draw(st.integers(0, 15)) == 7 else ""

    def literal(kind: Any) -> str:
        if isinstance(kind, dict) and kind["type"] == "record":
            return draw(_texts(kind["fields"]))
        if draw(st.integers(0, 7)) == 7:
            return draw(_LITERALS)
        plain = kind[1] if isinstance(kind, list) else kind
        if isinstance(plain, dict):
            return '"up"' if plain["type"] == "enum" else "1.5"
        return {"string": '"x"', "boolean": "true"}.get(plain, "3")

    order = list(fields)
    if draw(st.booleans()):
        order = [field for field in order if "default" not in field or draw(st.booleans())]
    for _ in range(draw(st.integers(0, 9)) // 9):
        order = draw(st.permutations(order)) if draw(st.booleans()) else [*order, draw(st.sampled_from(order))]
    parts = [
        f'{some_space()}"{field["name"]}"{some_space()}:{some_space()}{literal(field["type"])}{some_space()}'
        for field in order
    ]
    return f"{some_space()}{{{','.join(parts)}}}{some_space()}"


def _by_field(contract: Contract, value: bytes) -> Any:
    try:
        parsed = json_text.read(value)
        if not isinstance(parsed, json_text.Pairs):
            raise Inadmissible("no object")
        return _fields_of(contract)(parsed)
    except (Inadmissible, json_text.Malformed):
        return None


def _same(contract: Contract, value: bytes) -> bool:
    """Whether the pattern took it; then it must have made the same of it, to the sign of a zero."""
    found = patterns.reader(contract.fields, _default)(value)
    if found is not None:
        by_field = _by_field(contract, value)
        assert by_field is not None, value
        assert found == by_field, value
        assert repr(found) == repr({name: by_field[name] for name in found}), value
    return found is not None


@given(_texts(list(_ALL.fields.values())))
@example(
    '{"long":-0,"int":-0,"within":{"text":""},"double":-0,"boolean":false,"decimal":-0,"way":"up","maybe":-0,"text":null,"known":-0,"last":true}'
)
def test_whatever_is_matched_is_read_as_field_by_field(text: str) -> None:
    _same(_ALL, text.encode())


@pytest.mark.parametrize("name", [*BROKEN, *ODD])
def test_so_is_what_is_hostile(name: str) -> None:
    for topic, seed, text in first_messages():
        value = {**BROKEN, **ODD}[name](random.Random(seed), Good(topic, text))
        _same(contracts()[topic], value or b"")


@pytest.mark.parametrize("domain", [averages, bank, campaigns, runner, trades])
def test_what_generators_write_is_matched(domain: ModuleType) -> None:
    inputs = list(domain.generate(7, 500, shape=Shape()))
    matched = {_same(contracts()[one.topic], one.value) for one in inputs if b"\\" not in (one.value or b"")}
    assert matched == {True}


def test_what_is_spelled_as_usual_is_matched() -> None:
    assert _same(_ALL, _GOOD)
    assert _same(_ALL, _GOOD.replace(b" ", b""))
    assert _same(_ALL, b"\n" + _GOOD.replace(b" ", b"\r\n\t") + b"\n")
    assert decode(_ALL, _GOOD) == {
        "long": 5,
        "int": -7,
        "within": {"text": "a"},
        "double": 0.5,
        "boolean": True,
        "decimal": Decimal("12.50"),
        "way": "up",
        "maybe": None,
        "text": "b",
        "known": 8,
        "said": "so",
        "none": None,
        "price": Decimal("0.02"),
        "last": False,
    }
    given = _GOOD.replace(b'"last"', b'"known": 9, "said": "no", "none": 7, "price": 1, "last"')
    assert _same(_ALL, given)
    assert {"known": 9, "said": "no", "none": 7, "price": 1}.items() <= decode(_ALL, given).items()
    assert _same(_ALL, _GOOD.replace(b'"last"', b'"said": "", "last"')), "empty is not missing"


def test_a_first_field_may_be_missing_too() -> None:
    fields = [{"name": "first", "type": "long", "default": 1}, {"name": "second", "type": "long"}]
    contract = contract_of({"type": "record", "name": "Two", "namespace": "test", "fields": fields})
    for text in (b'{"first": 5, "second": 6}', b'{"second": 6}', b'{, "second": 6}', b'{"first": 5}'):
        assert _same(contract, text) == (b"5, " in text), text


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (b"5", b"-0"),
        (b"5", b"9223372036854775808"),
        (b"-7", b"2147483648"),
        (b"0.5", b"-0"),
        (b"0.5", b"1e400"),
        (b"12.50", b"-0"),
        (b'"a"', b'"\\u0000"'),
        (b'"a"', b'"\\ud800"'),
        (b'"a"', b'"\x01"'),
        (b'"a"', b'"\xff"'),
        (b'"up"', b'"over"'),
        (b'"up"', b'"up", "more": 1'),
        (b'"up"', b'"up", "way": "up"'),
        (b'"int"', b'"Int"'),
        (b'"long": 5, "int": -7', b'"int": -7, "long": 5'),
        (b'"boolean": true, ', b""),
    ],
)
def test_what_is_not_is_left_to_the_slow_way(was: bytes, now: bytes) -> None:
    value = _GOOD.replace(was, now, 1)
    assert value != _GOOD
    assert not _same(_ALL, value)
    assert patterns.reader(_ALL.fields, _default)(_GOOD + b"x") is None


def test_a_contract_with_another_type_has_no_pattern() -> None:
    assert (
        patterns.reader({"at": {"name": "at", "type": {"type": "array", "items": "long"}}}, _default)(b'{"at": [1]}')
        is None
    )
