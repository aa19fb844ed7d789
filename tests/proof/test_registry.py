"""Inputs in the Confluent wire format: the judge looks schemas up by itself, and reads what the processor reads."""

import http.server
import json
import threading
from collections.abc import Iterator

import msgspec
import pytest

from onefold.processor.apps.runner import TOPOLOGY
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Record
from onefold.processor.service import codec_of
from onefold.proof.decode import Inadmissible, contracts, decode
from onefold.proof.registry import Registry
from onefold.proof.verdict import CannotTell
from onefold.proof.workloads import runner
from onefold.proof.workloads.hostile import Good

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


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path.startswith("/schemas/ids/5")
        body = {"schema": json.dumps(WRITER)} if known else {"error_code": 40403, "message": "Schema not found"}
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_value_is_read_with_its_writers_schema(url: str) -> None:
    assert decode(contracts()[runner.TOPIC], VALUE, Registry(url)) == UPDATE
    processed = codec_of(TOPOLOGY, url).decode(Record(runner.TOPIC, 0, 0, None, VALUE))
    assert msgspec.to_builtins(processed) == UPDATE


@pytest.mark.parametrize("value", [b"\0\0\0\0\6" + VALUE[5:], VALUE[:-1], VALUE + b"\0", VALUE[:4]])
def test_what_is_refused(url: str, value: bytes) -> None:
    with pytest.raises(Inadmissible):
        decode(contracts()[runner.TOPIC], value, Registry(url))
    with pytest.raises(Rejected):
        codec_of(TOPOLOGY, url).decode(Record(runner.TOPIC, 0, 0, None, value))


def test_without_an_answer_it_can_not_tell() -> None:
    body = Good(runner.TOPIC, next(runner.generate(1, 10)).value or b"").avro
    with pytest.raises(CannotTell, match="can not be reached"):
        decode(contracts()[runner.TOPIC], b"\0\0\0\0\5" + body, Registry("http://127.0.0.1:1"))
    with pytest.raises(CannotTell, match="no http"):
        Registry("file:///etc/passwd")
