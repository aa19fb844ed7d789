"""Which bytes are admissible: the rules in the docstring of `onefold.verify.decode`, one by one."""

import json
import random
import time
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from onefold.verify.contracts import Contract, contract_of, contracts
from onefold.verify.decode import VALUE_BYTES_MAX, Inadmissible, decode
from onefold.verify.json_text import depth
from onefold.workloads import campaigns, runner
from onefold.workloads.hostile import BROKEN, ODD, Good
from tests.support.first_messages import first_messages

UPDATE = contracts()[runner.TOPIC]
SEND = contracts()[campaigns.TOPIC]
GOOD = b'{"user_id": 3000, "distance_meters": 199, "timestamp_utc": 1509547964734, "sequence_id": 2, "run_id": 3091019}'
SENT = b'{"id": 1, "email": "A", "subject": "%b", "sent": 100, "date": "2021-12-01 12:00:00"}'


def user_id(literal: bytes) -> bytes:
    return GOOD.replace(b"3000", literal)


def test_the_seeds_spelling() -> None:
    fields = {
        "user_id": 3000,
        "distance_meters": 199,
        "timestamp_utc": 1509547964734,
        "sequence_id": 2,
        "run_id": 3091019,
    }
    assert decode(UPDATE, GOOD) == fields
    assert decode(SEND, SENT % b"A")["version"] == 0


@pytest.mark.parametrize(
    ("literal", "value"),
    [(b"0", 0), (b"-0", 0), (b"9223372036854775807", 2**63 - 1), (b"-9223372036854775808", -(2**63))],
)
def test_integers(literal: bytes, value: int) -> None:
    assert decode(UPDATE, user_id(literal))["user_id"] == value


@pytest.mark.parametrize(
    "literal",
    [b"1.0", b"1e2", b"1E0", b"-0.0", b"true", b'"1"', b"null", b"[1]", b"{}", b"NaN", b"Infinity", b"-Infinity",
     b"1e400", b"+1", b"01", b"0x1", b"1_0", b"1.", b".5", b"-", b"9223372036854775808", b"-9223372036854775809",
     b"9" * 5000],
)  # fmt: skip
def test_what_is_no_integer(literal: bytes) -> None:
    with pytest.raises(Inadmissible):
        decode(UPDATE, user_id(literal))


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (b"\\/", "/"),
        (b"\x7f", "\x7f"),
        (b"\\ud83d\\ude00", "😀"),
        (b"\xf0\x9f\x98\x80", "😀"),
        (b"\xe2\x80\xa8", "\u2028"),
    ],
)
def test_texts(literal: bytes, value: str) -> None:
    assert decode(SEND, SENT % literal)["subject"] == value


@pytest.mark.parametrize(
    "literal",
    [b"\\u0000", b"\\ud800", b"\\udc00", b"\\ud800\\ud800\\udc00", b"\xed\xa0\x80", b"\xff", b"\xc0\x80", b"\0",
     b"\n", b"\\x41", b"\\u12", b"\\'", b"\xf4\x90\x80\x80"],
)  # fmt: skip
def test_what_is_no_text(literal: bytes) -> None:
    with pytest.raises(Inadmissible):
        decode(SEND, SENT % literal)


def test_depth_is_counted_in_levels_and_not_in_brackets() -> None:
    def nested(levels: int) -> bytes:
        return GOOD[:-1] + b', "x": ' + b"[" * levels + b"]" * levels + b"}"

    assert decode(UPDATE, nested(63))
    with pytest.raises(Inadmissible, match="nested"):
        decode(UPDATE, nested(64))
    assert decode(SEND, SENT % (b"[" * 400))
    assert decode(SEND, SENT % (b'\\"[{' * 100))


def test_depth_is_exact_in_well_formed_text() -> None:
    """Every string of up to six of these characters that JSON allows, between brackets that count and do not."""
    for length in range(7):
        for characters in product('"\\[}a', repeat=length):
            string = f'"{"".join(characters)}"'
            try:
                json.loads(string)
            except ValueError:
                continue
            assert depth(f"[{string}, [{string}]]") == 2, string


def test_to_count_levels_takes_time_in_proportion_to_the_length() -> None:
    """8 times the text, less than 24 times the CPU time of this thread, the best of five; a square would be 64 times."""

    def took_s(part: str, times: int) -> float:
        text = "{" * 65 + part * times
        found = []
        for _ in range(5):
            begun = time.thread_time()
            depth(text)
            found.append(time.thread_time() - begun)
        return min(found)

    for part in ('\\"', '"', "\\", "["):
        assert took_s(part, 16_000) < 24 * took_s(part, 2_000), part


def test_a_value_of_exactly_one_mebibyte_is_taken_and_one_byte_more_is_not() -> None:
    room = VALUE_BYTES_MAX - len(GOOD)
    assert decode(UPDATE, GOOD + b" " * room)
    with pytest.raises(Inadmissible):
        decode(UPDATE, GOOD + b" " * (room + 1))


def test_confluent_needs_a_registry() -> None:
    body = Good(runner.TOPIC, GOOD).avro
    value = b"\0" + (5).to_bytes(4, "big") + body
    with pytest.raises(Inadmissible):
        decode(UPDATE, value)
    assert decode(UPDATE, value, {5: UPDATE.written}.__getitem__) == decode(UPDATE, GOOD)


@pytest.mark.parametrize("name", BROKEN)
def test_hostile_input_is_refused(name: str) -> None:
    for topic, seed, text in first_messages():
        value = BROKEN[name](random.Random(seed), Good(topic, text))
        with pytest.raises(Inadmissible):
            decode(contracts()[topic], value)


@pytest.mark.parametrize("name", ODD)
def test_odd_input_is_taken(name: str) -> None:
    for topic, seed, text in first_messages():
        expected = decode(contracts()[topic], text)
        assert decode(contracts()[topic], ODD[name](random.Random(seed), Good(topic, text))) == expected, topic


_DECIMAL: dict[str, Any] = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}
_FIELDS: list[dict[str, Any]] = [
    {"name": "long", "type": "long"},
    {"name": "within", "type": {"type": "record", "name": "Within", "fields": [{"name": "text", "type": "string"}]}},
    {"name": "decimal", "type": _DECIMAL},
    {"name": "way", "type": {"type": "enum", "name": "Way", "symbols": ["up", "down"]}},
    {"name": "maybe", "type": ["null", "double"]},
    {"name": "known", "type": "long", "default": 8},
    {"name": "said", "type": "string", "default": "so"},
    {"name": "none", "type": ["null", "long"], "default": None},
    {"name": "price", "type": _DECIMAL, "default": "\u0002"},
]


def of(fields: list[dict[str, Any]]) -> Contract:
    return contract_of({"type": "record", "name": "All", "namespace": "test", "fields": fields})


def test_fields_that_have_a_default_may_be_missing() -> None:
    contract, given = of(_FIELDS), b'{"long": 5, "within": {"text": "a"}, "decimal": 12.50, "way": "up", "maybe": null}'
    expected = {"long": 5, "within": {"text": "a"}, "decimal": Decimal("12.50"), "way": "up", "maybe": None}
    assert decode(contract, given) == {**expected, "known": 8, "said": "so", "none": None, "price": Decimal("0.02")}
    more = (
        given.replace(b"}", b"", 1)[:-1].replace(b'"a"', b'"a"}') + b', "known": 9, "said": "", "none": 7, "price": 1}'
    )
    assert decode(contract, more) == {**expected, "known": 9, "said": "", "none": 7, "price": Decimal(1)}


@pytest.mark.parametrize("spelled", [b"12.5", b"12.5e0", b"125e-1", b" 12.50"])
@pytest.mark.parametrize(
    ("kind", "expected"), [(_DECIMAL, Decimal("12.5")), ({"type": "string", "logicalType": "decimal"}, None)]
)
def test_all_spellings_of_a_number_are_judged_alike(
    kind: dict[str, Any], expected: Decimal | None, spelled: bytes
) -> None:
    """Of a type that a number can be, and of one that it cannot."""
    contract, value = of([{"name": "number", "type": kind}]), b'{"number": %b}' % spelled
    if expected is None:
        with pytest.raises(Inadmissible, match="number is no decimal"):
            decode(contract, value)
    else:
        assert decode(contract, value) == {"number": expected}
