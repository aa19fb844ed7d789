"""Inputs in the Confluent wire format: the judge finds schemas by itself, and reads what the processor reads."""

import http.server
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from onefold.error_codes import Code
from onefold.processor.apps.runner import TOPOLOGY
from onefold.processor.core.errors import Rejected, Retriable
from onefold.processor.core.values import Record
from onefold.processor.loading import codec_of
from onefold.verify.contracts import contracts
from onefold.verify.decode import Inadmissible, decode
from onefold.verify.registry import SchemasById
from onefold.verify.verdict import CannotTell
from onefold.workloads import runner
from onefold.workloads.hostile import Good
from tests.support.coded import raises

# The writer knows a field that the contract lacks, and orders the others differently.
WRITER = {
    "type": "record",
    "name": "Update",
    "namespace": "runner",
    "fields": [
        {"name": name, "type": kind}
        for name, kind in [
            ("device", "string"),
            ("run_id", "long"),
            ("user_id", "long"),
            ("distance_meters", "long"),
            ("timestamp_utc", "long"),
            ("sequence_id", "long"),
        ]
    ],
}
VALUE = b"\0\0\0\0\5" + b"\x02w" + bytes([2, 4, 6, 8, 10])
UPDATE = {"run_id": 1, "user_id": 2, "distance_meters": 3, "timestamp_utc": 4, "sequence_id": 5}


# How often a server looks whether it is to stop; its own default is half a second, which every test would wait for.
POLL_S = 0.005
UNKNOWN = {"error_code": 40403, "message": "Schema not found"}
ANSWERS: dict[int, tuple[int, Any]] = {
    5: (200, {"schema": json.dumps(WRITER)}),
    # Refused schemas.
    7: (200, {"schema": "{"}),
    8: (200, {"schema": json.dumps({"type": "array", "items": "null"})}),
    # No answer of a registry.
    20: (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
    21: (404, "nginx"),
    22: (404, []),
    23: (200, {}),
    24: (200, {"schema": None}),
    25: (200, "welcome"),
    26: (200, []),
    27: (403, {"error_code": 40301}),
}


class _Handler(http.server.BaseHTTPRequestHandler):
    asked: list[int] = []  # noqa: RUF012 - the fixture makes a new one

    def do_GET(self) -> None:
        number = int(self.path.split("?")[0].rsplit("/", 1)[1])
        self.asked.append(number)
        status, body = ANSWERS.get(number, (404, UNKNOWN))
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.end_headers()
        self.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(_Handler, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_value_is_read_with_its_writers_schema(url: str) -> None:
    assert decode(contracts()[runner.TOPIC], VALUE, SchemasById(url)) == UPDATE
    processed = codec_of(TOPOLOGY, url).decode(Record(runner.TOPIC, 0, 0, None, VALUE))
    assert msgspec.to_builtins(processed) == UPDATE


@pytest.mark.parametrize("value", [b"\0\0\0\0\6" + VALUE[5:], VALUE[:-1], VALUE + b"\0", VALUE[:4]])
def test_what_is_refused(url: str, value: bytes) -> None:
    with pytest.raises(Inadmissible):
        decode(contracts()[runner.TOPIC], value, SchemasById(url))
    with pytest.raises(Rejected):
        codec_of(TOPOLOGY, url).decode(Record(runner.TOPIC, 0, 0, None, value))


def numbered(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + VALUE[5:]


@pytest.mark.parametrize("schema_id", [20, 21, 22, 23, 24, 25, 26, 27])
def test_what_is_no_registrys_answer_makes_no_record_inadmissible(url: str, schema_id: int) -> None:
    """A proxy, a wrong path. Neither side remembers it."""
    registry, codec = SchemasById(url), codec_of(TOPOLOGY, url)
    for _ in range(2):
        with pytest.raises(CannotTell, match="registry") as told:
            decode(contracts()[runner.TOPIC], numbered(schema_id), registry)
        assert ("no schema registry?" in str(told.value)) is (ANSWERS[schema_id][0] == HTTPStatus.NOT_FOUND)
        with pytest.raises(Retriable, match="registry"):
            codec.decode(Record(runner.TOPIC, 0, 0, None, numbered(schema_id)))


@pytest.mark.parametrize(
    ("schema_id", "times"), [(5, 1), (6, 1), (7, 1), (8, 1), (2**31 - 1, 1), (2**31, 0), (2**32 - 1, 0)]
)
def test_each_id_is_asked_for_once_in_a_run(url: str, schema_id: int, times: int) -> None:
    registry = SchemasById(url)
    for _ in range(3):
        try:
            decode(contracts()[runner.TOPIC], numbered(schema_id), registry)
        except Inadmissible:
            assert schema_id != 5
    assert _Handler.asked == [schema_id] * times
    if schema_id != 5:
        with pytest.raises(Rejected):
            codec_of(TOPOLOGY, url).decode(Record(runner.TOPIC, 0, 0, None, numbered(schema_id)))


def test_without_an_answer_it_cannot_tell() -> None:
    body = Good(runner.TOPIC, next(runner.generate(1, 10)).value or b"").avro
    with raises(CannotTell, Code.REGISTRY_SILENT):
        decode(contracts()[runner.TOPIC], b"\0\0\0\0\5" + body, SchemasById("http://127.0.0.1:1"))
    with raises(CannotTell, Code.REGISTRY_WRONG):
        SchemasById("file:///etc/passwd")
