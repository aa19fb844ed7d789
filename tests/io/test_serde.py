"""What the codec refuses before it can touch a state."""

import struct
import time
from decimal import Decimal
from io import BytesIO
from itertools import product
from typing import Any

import fastavro
import pytest

from onefold.processor.apps import campaigns, trades
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Record
from onefold.processor.io import avro_reader, contracts
from onefold.processor.io.serde import _STRINGS, AvroCodec, _refuse_depth

pytestmark = pytest.mark.promise("hostile-bytes")

CODEC = AvroCodec(campaigns.TOPOLOGY, contracts.load())
SEND = r'{"id": 1, "email": "%s", "subject": "%s", "sent": 1, "date": "2021-12-01 12:00:00"}'


def decoded(text: str) -> Any:
    return CODEC.decode(Record("campaigns.sends", 0, 0, None, text.encode()))


@pytest.mark.parametrize("texts", [(r"a\u0000", "b"), ("a", r"\u0000"), (r"\\\u0000", "b")])
def test_an_escaped_nul_in_any_text_is_refused(texts: tuple[str, str]) -> None:
    with pytest.raises(Rejected, match=r"campaigns\.Send"):
        decoded(SEND % texts)


def test_the_six_characters_that_only_look_like_nul_are_a_text() -> None:
    assert decoded(SEND % (r"a\\u0000", "b")).email == r"a\u0000"


def test_depth_is_counted_in_levels_outside_of_strings() -> None:
    def nested(levels: int) -> str:
        return (SEND % ("a", "b"))[:-1] + ', "x": ' + "[" * levels + "]" * levels + "}"

    assert decoded(nested(63))
    with pytest.raises(Rejected, match="nested deeper than 64"):
        decoded(nested(64))
    assert decoded(SEND % ('\\"[{' * 100, "[" * 65))


def test_the_shortest_text_of_objects_that_is_too_deep_is_refused_for_that() -> None:
    def nested(levels: int) -> str:
        return '{"":' * (levels - 1) + "{}" + "}" * (levels - 1)

    with pytest.raises(Rejected, match=r"not JSON of campaigns\.Send"):
        decoded(nested(64))
    with pytest.raises(Rejected, match="nested deeper than 64"):
        decoded(nested(65))


@pytest.mark.parametrize(
    "text",
    ["[" * 128, "[" * 64 + "]" * 64, '{"id": ' + "[" * 121, "{" * 320, '{"":' * 80, '{"id": 1, "x": ' + '{"":' * 75],
)
def test_a_text_too_short_to_be_deep_is_refused_whatever_its_brackets(text: str) -> None:
    assert len(text) <= (128 if "[" in text else 320)
    with pytest.raises(Rejected, match=r"not JSON of campaigns\.Send"):
        decoded(text)


def depth_of(data: bytes) -> int:
    """How deep brackets outside of strings go, one byte after the other."""
    deepest = depth = 0
    inside = escaped = False
    for byte in data:
        if inside:
            inside = escaped or byte != ord('"')
            escaped = byte == ord("\\") and not escaped
        elif byte == ord('"'):
            inside = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def too_deep(data: bytes) -> bool:
    try:
        _refuse_depth(data)
    except Rejected:
        return True
    return False


def test_depth_is_exact_whatever_stands_in_strings_and_where_they_end() -> None:
    """All texts of up to six of these characters, so deep already that one bracket more or less counts."""
    for length in range(7):
        for characters in product(b'"\\[}a', repeat=length):
            data = b"[" * 64 + bytes(characters)
            assert too_deep(data) == (depth_of(data) > 64), data


def test_a_quote_is_never_looked_at_twice() -> None:
    """Whatever follows, the search ends behind it: one that fails begins again at the next quote."""
    for length in range(7):
        for characters in product(b'"\\[a\n', repeat=length):
            assert _STRINGS.match(b'"' + bytes(characters))


def test_to_count_levels_takes_time_in_proportion_to_the_length() -> None:
    """What a regular expression does within a match can only be seen as time: 8 times the text, less than 24 times that.

    CPU time of this thread alone, the best of five; a square would be 64 times.
    """

    def took_s(escapes: int) -> float:
        data = b"[" * 64 + b'\\"' * escapes + b"["
        times = []
        for _ in range(5):
            begun = time.thread_time()
            too_deep(data)
            times.append(time.thread_time() - begun)
        return min(times)

    assert took_s(16_000) < 24 * took_s(2_000)


def trade(value: bytes) -> Record:
    contract = contracts.load()["trades.trades"]
    length = BytesIO()
    fastavro.schemaless_writer(length, "long", len(value))
    body = b"\x02x" + length.getvalue() + value + b"\x02" + struct.pack("<d", 1.0) + b"\x02a\x02b\x02c"
    return Record("trades.trades", 0, 0, None, contract.prefix + body)


def test_a_decimal_in_avro_has_a_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of digits would be converted for minutes: what is too long is refused before that."""
    codec = AvroCodec(trades.TOPOLOGY, contracts.load())
    assert codec.decode(trade(b"\x01\xe2\x40")).Value == Decimal("0.123456")
    converted: list[int] = []
    convert = avro_reader._integer

    def noted(data: bytes) -> int:
        converted.append(len(data))
        return convert(data)

    monkeypatch.setattr(avro_reader, "_integer", noted)
    for length in (257, 10_000):
        with pytest.raises(Rejected, match=f"a decimal has {length} bytes; it has 1 to 256"):
            codec.decode(trade(b"\x7f" * length))
    assert converted == []
    with pytest.raises(Rejected, match="more than 18 digits"):
        codec.decode(trade(b"\x7f" * 256))
    assert converted == [256]


@pytest.mark.parametrize("number", [0, 127, 128, -1, -127, -128, -129, -(2**15), -(2**15) + 1])
def test_a_decimal_may_begin_with_bytes_that_repeat_its_sign(number: int) -> None:
    """Writers of fixed width write such bytes."""
    codec = AvroCodec(trades.TOPOLOGY, contracts.load())
    for size in (2, 3, 16, 256):
        spelled = number.to_bytes(size, "big", signed=True)
        assert codec.decode(trade(spelled)).Value == Decimal(number) / 10**6
    with pytest.raises(Rejected, match="a decimal has 0 bytes"):
        codec.decode(trade(b""))


def test_a_decimal_has_no_more_digits_than_its_contract() -> None:
    """fastavro would round it."""
    codec = AvroCodec(trades.TOPOLOGY, contracts.load())
    assert codec.decode(trade((10**18 - 1).to_bytes(8, "big"))).Value == Decimal("999999999999.999999")
    with pytest.raises(Rejected, match="more than 18 digits"):
        codec.decode(trade((10**18).to_bytes(8, "big")))


SENT = {"name": "Send", "namespace": "campaigns", "type": "record"}
UUID = "F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "string", "logicalType": "uuid"}, UUID),
        ({"type": "string", "logicalType": "uuid"}, "no uuid"),
        ({"type": "long", "logicalType": "timestamp-millis"}, -(2**63)),
        ({"type": "int", "logicalType": "date"}, 2**31 - 1),
        ({"type": "int", "logicalType": "time-millis"}, -1),
    ],
)
def test_what_a_writer_calls_a_number_or_a_text_does_not_matter(kind: dict[str, str], value: object) -> None:
    """Neither in a field that the contract does not know nor in one that it does."""
    texts: list[tuple[str, Any]] = [
        ("email", kind if kind["type"] == "string" else "string"),
        ("subject", "string"),
        ("date", "string"),
    ]
    numbers: list[tuple[str, Any]] = [
        ("id", {"type": "long", "logicalType": "timestamp-micros"}),
        ("sent", "long"),
        ("extra", kind),
    ]
    writer = {**SENT, "fields": [{"name": name, "type": kind} for name, kind in texts + numbers]}
    plain = {**SENT, "fields": [{"name": n, "type": k if type(k) is str else k["type"]} for n, k in texts + numbers]}
    body = BytesIO(b"\0\0\0\0\1")
    body.seek(5)
    email = value if type(value) is str else "a"
    fields = {"email": email, "subject": "b", "date": "c", "id": 7, "sent": 8, "extra": value}
    fastavro.schemaless_writer(body, fastavro.parse_schema(plain), fields)
    registry = type("Registry", (), {"schema": lambda self, number: avro_reader.writer(writer)})()
    decoded = AvroCodec(campaigns.TOPOLOGY, contracts.load(), registry).decode(
        Record("campaigns.sends", 0, 0, None, body.getvalue())
    )
    assert (decoded.email, decoded.id, decoded.sent) == (email, 7, 8)
