"""What the registry is asked for, and which of its schemas are refused."""

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from onefold.processor.core.errors import Rejected, Retriable
from onefold.processor.io import registry, schemas
from onefold.processor.io.registry import ConfluentRegistry
from onefold.processor.io.serde import _read

pytestmark = pytest.mark.promise("hostile-bytes")

GOOD = '"long"'


class _Client:
    """A registry with some texts; it counts what it is asked."""

    def __init__(self, texts: dict[int, str | None]) -> None:
        self.texts = texts
        self.asked: list[int] = []
        self.status = 404
        self.code: Any = 40403  # what a proxy answers may be no number

    def get_schema(self, schema_id: int) -> Any:
        self.asked.append(schema_id)
        if schema_id not in self.texts:
            raise SchemaRegistryError(self.status, self.code, "Schema not found")
        return Schema(self.texts[schema_id])


class _World:
    def __init__(self, texts: dict[int, str | None]) -> None:
        self.now = 1000.0
        self.registry = ConfluentRegistry("http://127.0.0.1:1", clock=lambda: self.now)
        self.client = _Client(texts)
        vars(self.registry)["_client"] = self.client

    def refused(self, schema_id: int) -> str:
        with pytest.raises(Rejected) as caught:
            self.registry.schema(schema_id)
        return str(caught.value)


def test_an_unknown_id_is_asked_for_once_in_a_while_and_found_when_it_is_registered_later() -> None:
    world = _World({})
    reasons = {world.refused(7) for _ in range(100)}
    assert reasons == {"the schema registry knows no schema 7"}
    assert world.client.asked == [7]

    world.client.texts[7] = GOOD
    world.now += registry.UNKNOWN_S - 0.1
    world.refused(7)
    world.now += 0.2
    assert world.registry.schema(7).schema == "long"
    assert world.registry.schema(7).schema == "long"
    assert world.client.asked == [7, 7]


def test_so_many_unknown_ids_are_remembered_the_latest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_MAX", 10)
    world = _World({})
    for schema_id in range(25):
        world.refused(schema_id)
        assert len(world.registry._unknown) <= 10
    for schema_id in range(15, 25):
        world.refused(schema_id)
    assert world.client.asked == list(range(25))
    world.refused(0)
    assert world.client.asked[-1] == 0


def test_a_refused_schema_is_asked_for_and_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _World({3: "no schema"})
    parsed: list[int] = []
    parse = schemas.parse

    def noted(number: int, text: str, referenced: Any) -> Any:
        parsed.append(number)
        return parse(number, text, referenced)

    monkeypatch.setattr(schemas, "parse", noted)
    assert len({world.refused(3) for _ in range(100)}) == 1
    assert (world.client.asked, parsed) == ([3], [3])


def test_an_id_that_no_registry_can_have_is_not_asked_for() -> None:
    world = _World({})
    assert "knows no schema 2147483648" in world.refused(2**31)
    assert world.client.asked == []
    world.refused(2**31 - 1)
    assert world.client.asked == [2**31 - 1]


def test_no_answer_is_not_remembered() -> None:
    world = _World({})
    world.client.status = 500
    for _ in range(2):
        with pytest.raises(Retriable):
            world.registry.schema(7)
    assert world.client.asked == [7, 7]


@pytest.mark.parametrize("code", [-1, None, 404, 40401])
def test_a_404_that_no_registry_wrote_is_no_answer(code: int | None) -> None:
    """A proxy, a wrong path: that makes no dead letters of good records, and is not remembered either."""
    world = _World({})
    world.client.code = code
    for _ in range(2):
        with pytest.raises(Retriable, match="answers 404 and is no schema registry"):
            world.registry.schema(7)
    assert world.client.asked == [7, 7]


def test_an_answer_without_a_schema_is_no_answer() -> None:
    world = _World({7: None})
    with pytest.raises(Retriable, match="without a schema"):
        world.registry.schema(7)


def record(name: str, *kinds: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": k} for n, k in enumerate(kinds)]}


def doubled(levels: int) -> dict[str, Any]:
    """A record that takes no bytes and has two to the power of `levels` records in it, in a line for each level."""
    kinds = [record("E0"), *(record(f"E{n}", f"E{n - 1}", f"E{n - 1}") for n in range(1, levels + 1))]
    return record("Top", *kinds)


def chained(levels: int) -> dict[str, Any]:
    """Records within records by their names: flat as a text, deep as data."""
    return record("Top", record("C0", "long"), *(record(f"C{n}", f"C{n - 1}") for n in range(1, levels)))


def wrapped(kind: Any, levels: int) -> Any:
    for level in range(levels):
        kind = record(f"W{level}", kind)
    return kind


def nested(kind: Any, levels: int) -> Any:
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


def array(kind: Any) -> dict[str, Any]:
    return record("Array", {"type": "array", "items": kind})


def symbols(many: int) -> dict[str, Any]:
    return record("Top", {"type": "enum", "name": "E", "symbols": [f"A{n}" for n in range(many)]})


def branches(many: int) -> dict[str, Any]:
    return record("Top", [record(f"B{n}", "long") for n in range(many)])


# What fastavro takes for a schema that it has parsed and so checked before.
HIDDEN = {"__fastavro_parsed": True, "__named_schemas": {"Hidden": {"type": "array", "items": "null"}}}


# The text of a schema, and a part of why it is refused.
UNSAFE = {
    "[" * 100_000: "too deep to be parsed",
    '{"type":' * 100_000: "too deep to be parsed",
    '{"type": "array", "items":' * 200 + '"long"' + "}" * 200: "nested deeper than 64",
    json.dumps(record("R", ["null", doubled(13)])): "values of one record",
    json.dumps(nested("long", 65)): "nested deeper than 64",
    json.dumps(chained(65)): "nested deeper than 64",
    json.dumps(doubled(13)): "values of one record",
    json.dumps(doubled(60)): "values of one record",
    json.dumps(array(wrapped("long", 5))): "nearly none",
    json.dumps(array(record("R", "long", *["null"] * 5))): "nearly none",
    json.dumps(array({"type": "fixed", "name": "F", "size": 0})): "take no bytes",
    json.dumps(array(["long", doubled(3)])): "nearly none",
    json.dumps({"type": "map", "values": doubled(3)}): "nearly none",
    json.dumps({"type": "fixed", "name": "F", "size": "5"}): "size is no number",
    json.dumps(record("Top", record("null", "long"), {"type": "array", "items": "null"})): "take no bytes",
    json.dumps({**record("Top", "Hidden"), **HIDDEN}): "cannot be parsed",
    json.dumps([{**record("Top", "Hidden"), **HIDDEN}]): "cannot be parsed",
    json.dumps({**record("R"), "fields": [{"name": "f", "type": "double", "default": 10**400}]}): "cannot be parsed",
    json.dumps(symbols(4097)): "4097 symbols",
    json.dumps(branches(257)): "257 branches",
    json.dumps(record("R", record("Q", ["null", "R"]))): "recursive",
    json.dumps({"type": "long", "doc": "x" * 1024 * 1024}): "characters",
}  # fmt: skip


@pytest.mark.parametrize(("text", "part"), UNSAFE.items())
def test_a_schema_that_lets_a_record_end_or_hold_up_the_process_is_refused(text: str, part: str) -> None:
    with pytest.raises(Rejected, match=part) as caught:
        schemas.parse(1, text)
    assert len(str(caught.value)) < 300


def test_a_schema_is_refused_with_a_short_reason_however_much_of_it_the_parser_quotes() -> None:
    with pytest.raises(Rejected) as caught:
        schemas.parse(1, json.dumps({"type": "x" * 100_000}))
    assert len(str(caught.value)) < 300


HONEST = [
    nested("long", 64),
    chained(63),
    doubled(10),
    array(record("R", *[["null", "string"]] * 100)),
    array(["null", record("R", *["long"] * 30), record("Empty")]),
    array(record("R", "string", record("Q", "long", "null"))),
    {"type": "map", "values": "null"},
    symbols(4096),
    branches(256),
    {"type": "long", "doc": "x" * 1024 * 1000},
    {**record("Top", record("Hidden", "long"), {"type": "array", "items": "Hidden"}), **HIDDEN},
]


@pytest.mark.parametrize("schema", HONEST)
def test_an_honest_schema_is_taken(schema: Any) -> None:
    assert schemas.parse(1, json.dumps(schema))


NESTED_UNIONS = """
import io, json
from onefold.processor.io import schemas
from onefold.processor.io.serde import _read

def unions(levels):
    kind, names = "long", "long"
    for n in range(levels):
        a, b = ({"type": "record", "name": f"{x}{n}", "fields": [{"name": "f", "type": t}, {"name": x, "type": "int"}]}
                for x, t in (("A", kind), ("B", names)))
        kind, names = [a, b], [f"A{n}", f"B{n}"]
    return {"type": "record", "name": "T", "fields": [{"name": "u", "type": kind}]}

_read(b"\\2" * 30 + b"\\2" + b"\\2" * 30, 0, schemas.parse(1, json.dumps(unions(30))), None)
"""


def test_of_two_records_that_look_alike_the_one_that_was_written_is_compared() -> None:
    writer = schemas.parse(1, json.dumps(record("T", [record("A", "long"), record("B", "long")])))
    for body in (b"\0\2", b"\2\2"):
        assert _read(body, 0, writer, None) == {"f0": {"f0": 1}}


def test_nested_unions_are_read_in_time() -> None:
    """In a process of its own, with a deadline: the second of 30 branches would be found after 2^30 tries, an hour."""
    subprocess.run([sys.executable, "-c", NESTED_UNIONS], check=True, timeout=30)
