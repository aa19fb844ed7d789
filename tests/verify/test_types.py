"""Every type of a contract, in every spelling: judge and judged, who share no code, take the same inputs as the same values,
and what the processor writes is read back as it was."""

import io
import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record
from onefold.processor.io import avro_reader, contracts
from onefold.processor.io.logical_types import carried, spelled
from onefold.processor.io.serde import AvroCodec
from onefold.verify import avro as avro_of_the_judge
from onefold.verify.contracts import VerifiedSchema, contract_of
from onefold.verify.decode import Inadmissible, decode
from tests.support.coded import raises

DAY = {"type": "int", "logicalType": "date"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
TYPES: dict[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "fixed": {"type": "fixed", "name": "Two", "size": 2},
    "decimal": MONEY,
    "fixed-decimal": {"type": "fixed", "name": "M", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 2},
    "date": DAY,
    "time-millis": {"type": "int", "logicalType": "time-millis"},
    "uuid": {"type": "string", "logicalType": "uuid"},
    "enum": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    "array": {"type": "array", "items": DAY},
    "map": {"type": "map", "values": DAY},
    "record": {"type": "record", "name": "In", "fields": [{"name": "day", "type": DAY}]},
}
for _name in (
    "time-micros",
    "timestamp-millis",
    "timestamp-micros",
    "local-timestamp-millis",
    "local-timestamp-micros",
):
    TYPES[_name] = {"type": "long", "logicalType": _name}

MS = st.datetimes().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    "bytes": st.binary(max_size=9),
    "fixed": st.binary(min_size=2, max_size=2),
    "decimal": st.decimals(-9999, 9999, places=2),
    "fixed-decimal": st.decimals(-9999, 9999, places=2),
    "date": st.dates(),
    "time-millis": MS.map(datetime.time),
    "time-micros": st.times(),
    "timestamp-millis": MS.map(lambda at: at.replace(tzinfo=UTC)),
    "timestamp-micros": st.datetimes(timezones=st.just(UTC)),
    "local-timestamp-millis": MS,
    "local-timestamp-micros": st.datetimes(),
    "uuid": st.uuids(),
    "enum": st.sampled_from(["A", "B"]),
    "array": st.lists(st.dates(), max_size=3),
    "map": st.dictionaries(st.text("ab"), st.dates(), max_size=3),
    "record": st.builds(lambda day: {"day": day}, st.dates()),
}


def avro(contract: VerifiedSchema, record: dict[str, Any], schema: Any = None) -> bytes:
    """A single object of the contract; or with a writer's schema a value in the Confluent wire format."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema or contract.schema, record)
    return (b"\0\0\0\0\1" if schema else contract.prefix) + body.getvalue()


class Side:
    """A contract with one field `f` of the type and one that may be null, as either side has it, and in both directions."""

    def __init__(self, kind: Any) -> None:
        again = kind["name"] if isinstance(kind, dict) and "name" in kind else kind
        fields = [{"name": "f", "type": kind}, {"name": "g", "type": ["null", again], "default": None}]
        raw = {"type": "record", "name": "R", "namespace": "t", "fields": fields}
        found, topology = contracts._contract(raw), Topology(
            name="t", inputs=("t.in",), key=str, state=dict, handle=lambda state, event: (state, ()), outputs={"t.out": None}
        )  # fmt: skip
        more = {"name": "more", "type": "string", "default": ""}
        self.writer = {**raw, "fields": [more, *fields]}
        self.codec = AvroCodec(topology, {"t.in": found, "t.out": found}, self)
        self.contract = contract_of(raw)

    def schema(self, schema_id: int) -> Any:
        """The registry's answer: the fields, and one more before them."""
        return avro_reader.writer(self.writer)

    def __call__(self, value: bytes) -> tuple[Any, Any]:
        """What processor and judge take the value for; None when it is refused."""
        try:
            taken: Any = self.codec.decode(Record("t.in", 0, 0, None, value))
            taken = (_plain(taken.f), _plain(taken.g))
        except Rejected:
            taken = None
        try:
            judged: Any = tuple(
                decode(self.contract, value, lambda schema_id: avro_of_the_judge.written(self.writer))[name]
                for name in "fg"
            )
        except Inadmissible:
            judged = None
        return taken, judged

    def avro(self, record: dict[str, Any], schema: Any = None) -> bytes:
        return avro(self.contract, record, schema)


def _plain(value: Any) -> Any:
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value


MANY = settings().max_examples  # 100 with --all, else a tenth of them
SIDES = {name: Side(kind) for name, kind in TYPES.items()}


@pytest.mark.parametrize("name", TYPES)
@given(st.data())
@settings(max_examples=MANY * 6 // 10)
def test_one_value_in_three_spellings_and_back(name: str, data: st.DataObject) -> None:
    side, value = SIDES[name], data.draw(VALUES[name])
    record = {"f": value, "g": data.draw(st.none() | st.just(value))}
    expected = (record["f"], record["g"])
    written = side.codec.encode("t.out", record)

    for spelling in (
        json.dumps(record, default=spelled).encode(),
        side.avro(record),
        side.avro({**record, "more": "x"}, fastavro.parse_schema(side.writer)),
        written,
    ):
        taken, judged = side(spelling)
        assert taken == judged == expected, spelling
        assert type(taken[0]) is type(judged[0]) is type(value)
    assert written == side.avro(record) or "decimal" in name  # of -1.28 fastavro writes a byte more than anybody else


DATES = st.from_regex(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})?[T ]?([0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,10})?)?)?(Z|[+-][0-2][0-9]:[0-9]{2})?",
    fullmatch=True,
)
NEARLY: st.SearchStrategy[Any] = (
    DATES
    | st.text(max_size=8)
    | st.integers(-(2**64), 2**64)
    | st.integers(-86_400_001, 86_400_001)
    | st.sampled_from(
        [None, True, 1.0, 1.5, 1e400, [], {}, "AAA=", "AAB=", "AAA", "AA==", "AAA=\n", "A", "NaN", "1e3", "1_0"]
    )
    | st.uuids().map(str)
    | st.uuids().map(lambda one: f"{{{one}}}")
    | st.floats(allow_nan=False)
)


@given(st.sampled_from(sorted(TYPES.keys() - {"decimal", "fixed-decimal"})), NEARLY)
@settings(max_examples=15 * MANY)
def test_both_agree_on_what_json_is_of_a_type(name: str, value: Any) -> None:
    text = json.dumps({"f": value}).replace("Infinity", "1e400").encode()
    taken, judged = SIDES[name](text)
    assert taken == judged, text


@given(st.sampled_from(sorted(TYPES)), st.integers() | st.binary() | st.text() | st.floats())
@settings(max_examples=10 * MANY)
def test_both_agree_on_what_avro_carries(name: str, carrier: Any) -> None:
    side = SIDES[name]
    try:
        value = side.avro({"f": carrier, "g": None}, fastavro.parse_schema(carried(side.contract.schema)))
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError, LookupError):
        return
    taken, judged = side(side.contract.prefix + value[5:])
    assert repr(taken) == repr(judged)


MOMENT = datetime(2021, 12, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("timestamp-millis", '"2021-12-01T13:00:00+01:00"', MOMENT),
        ("timestamp-millis", '"2021-12-01 12:00Z"', MOMENT),
        ("timestamp-millis", "1638360000000", MOMENT),
        ("timestamp-micros", "1638360000000000", MOMENT),
        ("timestamp-micros", "-1", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        ("local-timestamp-micros", '"2021-12-01T12:00:00.000001000"', datetime(2021, 12, 1, 12, 0, 0, 1)),
        ("date", "18962", date(2021, 12, 1)),
        ("time-millis", "43200001", time(12, 0, 0, 1000)),
        ("uuid", '"12345678-90AB-CDEF-1234-567890ABCDEF"', UUID("12345678-90ab-cdef-1234-567890abcdef")),
        ("float", "0.1", 0.10000000149011612),
        ("bytes", '"AP8="', b"\0\xff"),
        ("decimal", "1.10", Decimal("1.10")),
        # None of the type: finer than it, without or with a zone, or no number at all.
        ("timestamp-millis", '"2021-12-01T12:00:00.0001Z"', None),
        ("timestamp-millis", '"2021-12-01T12:00:00"', None),
        ("local-timestamp-millis", '"2021-12-01T12:00:00Z"', None),
        ("timestamp-millis", "true", None),
        ("timestamp-millis", "1.0", None),
        ("timestamp-millis", "9223372036854775807", None),
        ("timestamp-micros", "9223372036854775808", None),
        ("date", "-2147483649", None),
        ("time-millis", "2147483648", None),
        ("timestamp-micros", '"0001-01-01T00:00:00+01:00"', None),
        ("date", '"2021-02-29"', None),
        ("time-millis", "86400000", None),
        ("float", "1e39", None),
        ("fixed", '"AAAA"', None),
        ("enum", '"C"', None),
    ],
)
def test_spellings_of_json(name: str, text: str, value: Any) -> None:
    expected = None if value is None else (value, None)
    assert SIDES[name](b'{"f": %b}' % text.encode()) == (expected, expected)


@pytest.mark.parametrize(
    ("name", "carrier"),
    [
        ("double", math.nan),
        ("double", -math.inf),
        ("float", math.inf),
        ("date", 2**31 - 1),
        ("time-millis", -1),
        ("timestamp-micros", 2**63 - 1),
        ("decimal", (10**6).to_bytes(3, "big")),
        ("fixed-decimal", (10**6).to_bytes(3, "big")),
        ("uuid", "1234567890abcdef1234567890abcdef"),
    ],
)
def test_what_is_refused_in_avro(name: str, carrier: Any) -> None:
    side = SIDES[name]
    value = side.avro({"f": carrier, "g": None}, fastavro.parse_schema(carried(side.contract.schema)))
    assert side(side.contract.prefix + value[5:]) == (None, None)


@pytest.mark.parametrize(
    ("name", "writer", "taken"),
    [
        ("timestamp-micros", "timestamp-micros", True),
        ("timestamp-micros", None, True),
        ("timestamp-micros", "timestamp-millis", False),
        ("timestamp-millis", "local-timestamp-millis", False),
        ("time-micros", "timestamp-micros", False),
        ("long", "timestamp-millis", True),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_writer_that_counts_in_another_unit_is_refused(
    name: str, writer: str | None, taken: bool, nested: bool
) -> None:
    """Its milliseconds would be taken for microseconds."""

    def within(kind: Any) -> Any:
        return {"type": "array", "items": {"type": "map", "values": ["null", kind]}} if nested else kind

    side = Side(within(TYPES[name]))
    kind = {"type": "long", "logicalType": writer} if writer else "long"
    side.writer = {**side.writer, "fields": [{"name": "f", "type": within(kind)}]}
    value = b"\0\0\0\0\1" + (b"\x02\x02\x02a\x02\x02\0\0" if nested else b"\x02")
    processed, judged = side(value)
    assert processed == judged
    assert (processed is not None) == taken


def test_a_decimal_may_have_as_few_bytes_as_java_gives_it() -> None:
    """-1.28 in one; fastavro writes two."""
    assert SIDES["decimal"](SIDES["decimal"].contract.prefix + b"\x02\x80\x00") == ((Decimal("-1.28"), None),) * 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int", 2**31),
        ("int", True),
        ("float", 1e39),
        ("bytes", "text"),
        ("fixed", b"one"),
        ("decimal", Decimal("0.001")),
        ("decimal", Decimal("1E+17")),
        ("decimal", Decimal("1E+999999999")),
        ("decimal", Decimal("1E-999999999")),
        ("decimal", Decimal("NaN")),
        ("decimal", 1.5),
        ("fixed-decimal", Decimal("10000")),
        ("date", datetime(2021, 12, 1)),
        ("date", "2021-12-01"),
        ("time-millis", time(0, 0, 0, 1)),
        ("time-micros", time(0, tzinfo=UTC)),
        ("timestamp-millis", datetime(2021, 12, 1, 0, 0, 0, 1, UTC)),
        ("timestamp-millis", datetime(2021, 12, 1)),
        ("local-timestamp-millis", MOMENT),
        ("uuid", "1234"),
        ("enum", "C"),
        ("array", [datetime(2021, 12, 1)]),
        ("record", {"day": "2021"}),
    ],
)
def test_an_output_that_would_not_be_exact_is_refused(name: str, value: Any) -> None:
    """fastavro cuts off microseconds, takes a time without a zone for the machine's, and 1E+17 for one digit."""
    for record in ({"f": value, "g": None}, {"f": value, "g": value}):
        with raises(Rejected, Code.OUTPUT_WRONG, "t.out"):
            SIDES[name].codec.encode("t.out", record)


@pytest.mark.parametrize(
    ("name", "value", "carrier"),
    [
        ("timestamp-millis", 1, 1),
        ("timestamp-millis", datetime(2021, 12, 1, 13, tzinfo=timezone(timedelta(hours=1))), 1_638_360_000_000),
        ("date", -1, -1),
        ("decimal", 7, b"\x02\xbc"),
        ("decimal", Decimal("1E+3"), (100_000).to_bytes(3, "big")),
        ("decimal", Decimal("-0"), b"\0"),
        ("decimal", Decimal("1.1000"), b"\x6e"),
        ("double", math.inf, math.inf),
        ("bytes", bytearray(b"x"), b"x"),
    ],
)
def test_outputs_in_the_unit_of_their_type(name: str, value: Any, carrier: Any) -> None:
    side = SIDES[name]
    data = side.codec.encode("t.out", {"f": value, "g": None})[len(side.contract.prefix) :]
    plain: Any = fastavro.schemaless_reader(
        io.BytesIO(data), fastavro.parse_schema(carried(side.contract.schema)), None
    )
    assert plain["f"] == carrier


def test_defaults_are_values_of_the_type() -> None:
    """Avro writes them in its own way: a number for a date, a character for a byte."""
    fields = [
        {"name": "f", "type": DAY, "default": 1},
        {"name": "g", "type": ["bytes", "null"], "default": "\x00ÿ"},
        {"name": "h", "type": MONEY, "default": "\x01"},
    ]
    raw = {"type": "record", "name": "R", "namespace": "t", "fields": fields}
    found = msgspec.json.Decoder(contracts._contract(raw).type).decode(b"{}")
    assert msgspec.structs.astuple(found) == (date(1970, 1, 2), b"\0\xff", Decimal("0.01"))
    assert tuple(decode(contract_of(raw), b"{}").values()) == (date(1970, 1, 2), b"\0\xff", Decimal("0.01"))


def test_a_type_that_json_could_not_tell_from_another_is_refused(tmp_path: Any) -> None:
    fields = [{"name": "f", "type": ["null", "string", "bytes"]}]
    raw = {"type": "record", "name": "R", "namespace": "t", "topics": ["t.in"], "fields": fields}
    (tmp_path / "t.R.avsc").write_text(json.dumps(raw), encoding="utf-8")
    with raises(Refused, Code.SCHEMA_WRONG, "t.R.avsc", "JSON"):
        contracts.load(tmp_path)
