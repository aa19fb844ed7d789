"""A table with a column of every type that a contract may have: the sink lands exact values, and sets aside what no column
can hold. With a real broker, a real Spark and a real Postgres."""

import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.query_config import LINE_BYTES_MAX, QueryConfig
from onefold.spark_sink.spark.query import SinkQuery
from tests.support.made_up_domain import MadeUp

Reader = psycopg.Connection[Any]

# Field, Avro type, column type.
TYPES: list[tuple[str, Any, str]] = [
    ("a_bool", "boolean", "boolean"),
    ("an_int", "int", "integer"),
    ("a_long", "long", "bigint"),
    ("a_float", "float", "real"),
    ("a_double", "double", "double precision"),
    ("a_text", "string", "text"),
    ("some_bytes", "bytes", "bytea"),
    ("four_bytes", {"type": "fixed", "name": "Four", "size": 4}, "bytea"),
    ("money", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}, "numeric"),
    ("fixed_money", {"type": "fixed", "name": "M", "size": 9, "logicalType": "decimal", "precision": 18, "scale": 2},
     "numeric"),
    ("a_day", {"type": "int", "logicalType": "date"}, "date"),
    ("at_ms", {"type": "long", "logicalType": "timestamp-millis"}, "timestamptz"),
    ("at_us", {"type": "long", "logicalType": "timestamp-micros"}, "timestamptz"),
    ("clock_ms", {"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp"),
    ("clock_us", {"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp"),
    ("daytime_ms", {"type": "int", "logicalType": "time-millis"}, "time"),
    ("daytime_us", {"type": "long", "logicalType": "time-micros"}, "time"),
    ("an_id", {"type": "string", "logicalType": "uuid"}, "uuid"),
    ("suit", {"type": "enum", "name": "Suit", "symbols": ["SPADES", "HEARTS"]}, "text"),
]  # fmt: skip
NAMES = [name for name, _, _ in TYPES]

LEAST: list[Any] = [
    False, -(2**31), -(2**63), -3.4028234663852886e38, -1.7976931348623157e308, "", b"", b"\0\0\0\0",
    Decimal("-9999999999999999999999999999.9999999999"), Decimal("-9999999999999999.99"), date(1, 1, 1),
    datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, 0, 0, 0, 1, UTC), datetime(1, 1, 1), datetime(1, 1, 1, 0, 0, 0, 1),
    time(0), time(0), UUID(int=0), "SPADES",
]  # fmt: skip
MOST: list[Any] = [
    True, 2**31 - 1, 2**63 - 1, 3.4028234663852886e38, 1.7976931348623157e308, 'a "quoted",\ntext\\. é\U0001f600',
    bytes(range(256)), b"\xff,\"\n", Decimal("9999999999999999999999999999.9999999999"), Decimal("9999999999999999.99"),
    date(9999, 12, 31), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_000), datetime(9999, 12, 31, 23, 59, 59, 999_999),
    time(23, 59, 59, 999_000), time(23, 59, 59, 999_999), UUID(int=2**128 - 1), "HEARTS",
]  # fmt: skip
# One microsecond before 1970, the days that two calendars disagree about, and numbers that are none.
ODD: list[Any] = [
    True, -1, -1, math.nan, math.nan, "\\N", b"\\x00", b"\\x00", Decimal("-0.0000000001"), Decimal("-0.01"),
    date(1582, 10, 10), datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1582, 10, 10), datetime(1500, 2, 28, 1, 2, 3, 456_789), time(0, 0, 0, 1000), time(0, 0, 0, 1),
    UUID("12345678-90ab-cdef-1234-567890abcdef"), "HEARTS",
]  # fmt: skip
INFINITE = [*ODD[:3], -math.inf, math.inf, *ODD[5:]]
TINY = [*ODD[:3], 1.401298464324817e-45, 5e-324, *ODD[5:]]


@pytest.fixture
def plan(plan: QueryConfig, made_up: MadeUp, tmp_path: Path) -> QueryConfig:
    """The made-up domain, with one more topic."""
    name, topic = made_up.name, f"{made_up.name}.kinds"
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    for field, kind, _ in TYPES:
        fields.append({"name": field, "type": kind})
        again = kind["name"] if isinstance(kind, dict) and "name" in kind else kind
        fields.append({"name": f"{field}_or_null", "type": ["null", again], "default": None})
    schema = {"type": "record", "name": "Kinds", "namespace": name, "fields": fields, "topics": [topic]}
    (tmp_path / f"avro/{topic}.avsc").write_text(json.dumps(schema), encoding="utf-8")
    columns = ", ".join(f"{field} {kind} NOT NULL, {field}_or_null {kind}" for field, _, kind in TYPES)
    (tmp_path / f"sql/schema/{name}.02.sql").write_text(
        f"CREATE TABLE {name}.kinds (id bigint PRIMARY KEY, {columns},"
        ' topic text NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL);',
        encoding="utf-8",
    )
    names = ", ".join(field["name"] for field in fields)
    (tmp_path / f"sql/merge/{topic}.sql").write_text(
        f'INSERT INTO {name}.kinds (id, {names[4:]}, topic, partition, "offset")'
        f' SELECT {names}, topic, partition, "offset" FROM :stage AS stage ON CONFLICT (id) DO NOTHING',
        encoding="utf-8",
    )
    made_up.add_topic(topic, schema)
    return replace(plan, domain=load_domain(name, tmp_path / "avro", tmp_path / "sql"))


def record(number: int, values: list[Any]) -> dict[str, Any]:
    """Nullable fields are null in every other record."""
    row = dict(zip(NAMES, values, strict=True))
    again = {f"{name}_or_null": None if number % 2 else value for name, value in row.items()}
    return {"id": number, **row, **again}


def same(name: str, found: Any, right: Any) -> bool:
    """NaN is NaN; of a `real` Postgres prints only as many digits as tell it from others."""
    if isinstance(right, float):
        width = "f" if name.startswith("a_float") else "d"
        return struct.pack(width, found) == struct.pack(width, right)
    return type(found) is type(right) and found == right


@pytest.mark.parametrize("line_bytes_max", [LINE_BYTES_MAX, 1_000], ids=["whole", "in parts"])
def test_every_type_is_landed_exactly(
    made_up: MadeUp,
    plan: QueryConfig,
    query: Callable[..., SinkQuery],
    until_landed: Callable[..., None],
    reader: Reader,
    line_bytes_max: int,
) -> None:
    topic = made_up.topics[-1]
    made_up.create_topics(partitions=1)
    stories = [values for values in (LEAST, MOST, ODD, INFINITE, TINY) for _ in range(2)]
    rows = [record(number, values) for number, values in enumerate(stories)]
    made_up.send_raw([(topic, 0, made_up.encode(topic, row)) for row in rows])
    until_landed(query(domain=plan.domain, line_bytes_max=line_bytes_max))

    assert reader.execute("SELECT reason FROM onefold.rejected").fetchall() == []
    names = ", ".join(rows[0])
    for row in rows:
        found = reader.execute(f"SELECT {names} FROM {made_up.name}.kinds WHERE id = %s", [row["id"]]).fetchone()
        assert found is not None
        for (name, right), value in zip(row.items(), found, strict=True):
            assert same(name, value, right), f"{name} of {row['id']}: {value!r}, not {right!r}"


# What no column can hold, spelled as the number or text that Avro carries; and what is said about it.
BEYOND: list[tuple[str, Any, str]] = [
    ("a_day", 2**31 - 1, "a_day is out of range"),
    ("a_day", -(2**31), "a_day is out of range"),
    ("a_day", -106_751_991, "date out of range"),
    ("at_ms", 2**63 - 1, "the body is no"),
    ("at_us", -(2**63), "out of range"),
    ("clock_us", -(2**63), "out of range"),
    ("daytime_ms", 86_400_000, "daytime_ms is no time of a day"),
    ("daytime_us", -1, "daytime_us is no time of a day"),
    ("daytime_us", 2**63 - 1, "daytime_us is no time of a day"),
    ("an_id", 'no "id",\n', "uuid"),
    ("an_id", "\0", "NUL"),
]
# What Postgres has and Python has not.
FAR: list[tuple[str, Any, str]] = [
    ("a_day", -719_529, "0002-12-31 BC"),
    ("a_day", 2_932_897, "10000-01-01"),
    ("at_us", 253_402_300_800_000_001, "10000-01-01 00:00:00.000001+00"),
    ("at_us", 2**63 - 1, "294247-01-10 04:00:54.775807+00"),
    ("clock_ms", -62_135_596_800_001, "0001-12-31 23:59:59.999 BC"),
]


def test_what_is_beyond_a_column_is_set_aside_and_the_far_past_and_future_are_landed(
    made_up: MadeUp,
    plan: QueryConfig,
    query: Callable[..., SinkQuery],
    until_landed: Callable[..., None],
    reader: Reader,
) -> None:
    topic = made_up.topics[-1]
    made_up.create_topics(partitions=1)
    good = record(1, ODD)
    raw = {**made_up.raw(topic, good)}
    cases = [*BEYOND, *FAR]
    values = [
        made_up.encode_raw(topic, {**raw, "id": number, name: value}) for number, (name, value, _) in enumerate(cases)
    ]
    made_up.send_raw([(topic, 0, value) for value in values])
    until_landed(query(domain=plan.domain))

    reasons = {
        int(row[0]): row[1] for row in reader.execute('SELECT "offset", reason FROM onefold.rejected').fetchall()
    }
    assert sorted(reasons) == list(range(len(BEYOND))), reasons
    for number, (name, value, reason) in enumerate(BEYOND):
        assert reason in reasons[number], (name, value)
    for number, (name, value, text) in enumerate(FAR, len(BEYOND)):
        found = reader.execute(f"SELECT {name}::text FROM {made_up.name}.kinds WHERE id = %s", [number]).fetchone()
        assert found == (text,), (name, value)
