"""Decode the proposals of 0.2: the byte 1, then Avro (avro/engine).

A rolling upgrade from 0.2 leaves records of both releases in one log. The release after this one deletes this module and
avro/engine, and refuses the byte 1. A reader must not ignore old records: its peers would accept other proposals.
"""

import io
import json
from typing import Any

import fastavro
import msgspec

from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Proposal, ProposalKind, Range
from onefold.processor.core.decision_log import ProposalBody, StatusRecord
from onefold.processor.core.values import RecordCounts
from onefold.processor.io.contracts import FOLDER

#: The first byte of a record, and of the writes in a decoded proposal. No msgpack array begins with this byte.
FORMAT = 1

_DECISION, _WRITES = (
    fastavro.parse_schema(json.loads((FOLDER / "engine" / f"{name}.avsc").read_text(encoding="utf-8")))
    for name in ("decision", "writes")
)
# Raised by fastavro and json for malformed bytes.
_NO_RECORD = (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, MemoryError, RecursionError)


def decode(value: bytes) -> Proposal | StatusRecord | None:
    """Decode a record of the decision log; None if the bytes are malformed."""
    try:
        return _decoded(value)
    except _NO_RECORD:
        return None


def _decoded(value: bytes) -> Proposal | StatusRecord:
    stream = io.BytesIO(value)
    stream.seek(1)
    found: Any = fastavro.schemaless_reader(stream, _DECISION, None)
    # Records from before 0.2 lack the log's id at the end.
    log_id: Any = fastavro.schemaless_reader(stream, "string", None) if stream.tell() < len(value) else ""
    if found["kind"] == "note":
        return StatusRecord(
            found["task"], found["proposer"], msgspec.json.decode(found["note"], type=dict[str, Any]), log_id
        )
    inputs = {one["topic"]: Range(one["topic_id"], one["start"], one["end"]) for one in found["inputs"]}
    states = [(state["key"], state["value"]) for state in found["states"]]
    body = ProposalBody(RecordCounts(*found["counts"]), states, bytes((FORMAT,)) + found["writes"], found["ticked_ms"])
    return Proposal(
        found["task"], found["version"], inputs, found["proposer"], body, ProposalKind(found["kind"]), log_id
    )


def writes(data: bytes) -> list[Write]:
    """Decode `ProposalBody.writes` of a proposal that `decode` returned."""
    found: Any = fastavro.schemaless_reader(io.BytesIO(data[1:]), _WRITES, None)
    return [
        (
            write["topic"],
            None if write["partition"] < 0 else write["partition"],
            write["key"],
            write["value"],
            [(header["name"], header["value"]) for header in write["headers"]] or None,
        )
        for write in found
    ]
