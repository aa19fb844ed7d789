"""What a registry may hold beside one Avro text: references to other schemas, and other types. Judge and judged alike."""

import http.server
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from onefold.processor.core.errors import Rejected, Retriable
from onefold.processor.io.registry import REFERENCES_MAX, ConfluentRegistry
from onefold.processor.io.serde import _read
from onefold.verify import avro
from onefold.verify.decode import Inadmissible
from onefold.verify.registry import SchemasById
from onefold.verify.verdict import CannotTell

# How often a server looks whether it is to stop; its own default is half a second.
POLL_S = 0.005


def record(name: str, **kinds: Any) -> dict[str, Any]:
    space, _, own = name.rpartition(".")
    fields = [{"name": field, "type": kind} for field, kind in kinds.items()]
    return {"type": "record", "name": own, "namespace": space, "fields": fields}


def registered(schema: Any, *references: tuple[str, int], **more: Any) -> dict[str, Any]:
    """As a registry answers."""
    listed = [{"name": subject, "subject": subject, "version": version} for subject, version in references]
    return {"schema": json.dumps(schema), **({"references": listed} if listed else {}), **more}


COLOUR = {"type": "enum", "name": "Colour", "namespace": "shop", "symbols": ["red", "blue"]}
LINE = record("shop.Line", sku="string", colour="Colour")
LINE_OLD = record("shop.Line", sku="string")
ORDER = record(
    "orders.Order", id="string", line="shop.Line", more={"type": "array", "items": "shop.Line"}, c="shop.Colour"
)
WIDE = record("w.Wide", **{f"f{n}": f"w.R{n}" for n in range(3)})
TWICE = record("w.Twice", a="w.D1", b="w.D2")

ANSWERS: dict[str, Any] = {
    "/schemas/ids/1": registered(record("orders.Order", id="string", line="shop.Line"), ("line", 1)),
    "/schemas/ids/2": registered(ORDER, ("line", 2), ("colour", 1)),
    "/schemas/ids/3": registered({"type": "object"}, schemaType="JSON"),
    "/schemas/ids/4": {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; message Order {}'},
    "/schemas/ids/5": registered(record("orders.Order", line="shop.Line"), ("loop", 1)),
    "/schemas/ids/6": registered(record("orders.Order", line="shop.Line"), ("gone", 1)),
    "/schemas/ids/7": registered(record("orders.Order", line="shop.Line"), ("json", 1)),
    "/schemas/ids/8": registered(record("orders.Order", line="shop.Lyne"), ("line", 1)),
    "/schemas/ids/9": registered(["null", "shop.Line"], ("line", 2)),
    "/schemas/ids/10": registered(TWICE, ("d2", 1), ("d1", 1)),
    "/schemas/ids/11": registered(record("o.O", x="w.R0"), ("chain", 0)),
    "/schemas/ids/12": registered(record("orders.Order", c="shop.Colour", line="shop.Line"), ("odd & name/with", 1)),
    "/schemas/ids/13": registered(record("orders.Order", line="shop.Line", more=LINE_OLD), ("line", 1)),
    "/schemas/ids/14": registered(record("orders.Order", line="shop.Line"), ("recursive", 1)),
    "/schemas/ids/15": registered(record("orders.Order", id="string"), schemaType="AVRO"),
    "/schemas/ids/16": registered(record("orders.Order", line="shop.Line"), ("broken", 1)),
    "/subjects/line/versions/1": registered(LINE_OLD),
    "/subjects/line/versions/2": registered(LINE, ("colour", 1)),
    "/subjects/colour/versions/1": registered(COLOUR),
    "/subjects/loop/versions/1": registered(LINE_OLD, ("loop-back", 3)),
    "/subjects/loop-back/versions/3": registered(LINE_OLD, ("loop", 1)),
    "/subjects/json/versions/1": registered({"type": "object"}, schemaType="JSON"),
    "/subjects/d0/versions/1": registered(record("w.D0", x="long")),
    "/subjects/d1/versions/1": registered(record("w.D1", d="w.D0"), ("d0", 1)),
    "/subjects/d2/versions/1": registered(record("w.D2", d="w.D0", e="w.D1"), ("d0", 1), ("d1", 1)),
    "/subjects/odd%20%26%20name%2Fwith/versions/1": registered(record("shop.Line", c=COLOUR)),
    "/subjects/recursive/versions/1": registered(record("shop.Line", next=["null", "Line"])),
    "/subjects/broken/versions/1": {"subject": "broken"},
    **{
        f"/subjects/chain/versions/{n}": registered(record(f"w.R{n}", x=f"w.R{n + 1}"), ("chain", n + 1))
        for n in range(REFERENCES_MAX + 10)
    },
}


class Handler(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 - the fixture makes a new one

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        code = 40403 if path.startswith("/schemas") else 40402
        found = ANSWERS.get(path)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.end_headers()
        self.wfile.write(json.dumps(found or {"error_code": code, "message": "not found"}).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def body(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


RED = {"sku": "x", "colour": "red"}
INSIDE = record("shop.Line", sku="string", colour=COLOUR)


@pytest.mark.parametrize(
    ("schema_id", "whole", "value"),
    [
        (1, record("orders.Order", id="string", line=LINE_OLD), {"id": "a", "line": {"sku": "x"}}),
        (2, record("orders.Order", id="string", line=INSIDE, more={"type": "array", "items": "shop.Line"}, c="shop.Colour"),
         {"id": "a", "line": RED, "more": [RED], "c": "blue"}),
        (9, ["null", INSIDE], RED),
        (10, record("w.Twice", a=record("w.D1", d=record("w.D0", x="long")), b=record("w.D2", d="w.D0", e="w.D1")),
         {"a": {"d": {"x": 1}}, "b": {"d": {"x": 2}, "e": {"d": {"x": 3}}}}),
        (12, record("orders.Order", c=COLOUR, line=record("shop.Line", c="shop.Colour")), {"c": "red", "line": {"c": "blue"}}),
        (15, record("orders.Order", id="string"), {"id": "a"}),
    ],
)  # fmt: skip
def test_a_schema_is_read_with_all_that_it_refers_to(url: str, schema_id: int, whole: Any, value: Any) -> None:
    """In any order and depth, a type defined once however many refer to it. Each schema is asked for once."""
    data = body(whole, value)
    processor, judge = ConfluentRegistry(url), SchemasById(url)
    for _ in range(2):
        assert _read(data, 0, processor.schema(schema_id), None) == value
        assert avro.read(data, judge(schema_id)) == value
    assert max(map(Handler.asked.count, Handler.asked)) == 2


@pytest.mark.parametrize(
    ("schema_id", "says"),
    [
        (3, "schema 3 of the registry is of type JSON, and in the Confluent wire format only Avro is read: let the"),
        (4, "schema 4 of the registry is of type PROTOBUF, and"),
        (5, "schema 5 of the registry refers to version 1 of loop, which refers to itself"),
        (6, "schema 6 of the registry refers to version 1 of gone, which the registry does not have"),
        (7, "schema 7 of the registry is of type JSON by a reference"),
        (8, r"schema 8 of the registry cannot be parsed: .*shop\.Lyne"),
        (11, f"schema 11 of the registry refers to more than {REFERENCES_MAX} schemas"),
        (13, r"schema 13 of the registry cannot be parsed: redefined named type: shop\.Line"),
        (14, "schema 14 of the registry is recursive"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_reason(url: str, schema_id: int, says: str) -> None:
    processor, judge = ConfluentRegistry(url), SchemasById(url)
    with pytest.raises(Rejected, match=says):
        processor.schema(schema_id)
    with pytest.raises(Inadmissible, match="is refused"):
        judge(schema_id)


def test_a_reference_that_is_not_there_is_asked_for_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    processor = ConfluentRegistry(url, lambda: now[0])
    with pytest.raises(Rejected, match="which the registry does not have"):
        processor.schema(6)
    monkeypatch.setitem(ANSWERS, "/subjects/gone/versions/1", registered(LINE_OLD))
    with pytest.raises(Rejected, match="which the registry does not have"):
        processor.schema(6)  # not at every record
    now[0] += 11
    assert _read(b"\2x", 0, processor.schema(6), None) == {"line": {"sku": "x"}}


def test_an_answer_without_a_schema_is_no_verdict_on_the_record(url: str) -> None:
    with pytest.raises(Retriable):
        ConfluentRegistry(url).schema(16)
    with pytest.raises(CannotTell):
        SchemasById(url)(16)
