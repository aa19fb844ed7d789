"""Proposals as 0.2 wrote them: Avro (avro/engine) after the byte 1.

This is for the release after 0.2, in which one log has records of both. In the next one delete this module and avro/engine, and
refuse the byte 1: a reader that ignored such a record would decide otherwise than one that reads it.
"""

import io
import json
from typing import Any

import fastavro

from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body, Note
from onefold.processor.core.values import Counts
from onefold.processor.io.contracts import FOLDER

#: The first byte of a record, and here also that of the writes in a decoded proposal: no msgpack array begins with it.
FORMAT = 1

_DECISION, _WRITES = (
    fastavro.parse_schema(json.loads((FOLDER / "engine" / f"{name}.avsc").read_text(encoding="utf-8")))
    for name in ("decision", "writes")
)
# What fastavro and json raise at bytes that are something else.
_NO_RECORD = (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, MemoryError, RecursionError)


def decode(value: bytes) -> Proposal | Note | None:
    """What the bytes after the first one are; None: no record of 0.2."""
    try:
        return _decoded(value)
    except _NO_RECORD:
        return None


def _decoded(value: bytes) -> Proposal | Note:
    stream = io.BytesIO(value)
    stream.seek(1)
    found: Any = fastavro.schemaless_reader(stream, _DECISION, None)
    # Until shortly before 0.2 the record ended before the log's id.
    log_id: Any = fastavro.schemaless_reader(stream, "string", None) if stream.tell() < len(value) else ""
    if found["kind"] == "note":
        return Note(found["task"], found["proposer"], {**json.loads(found["note"])}, log_id)
    inputs = {one["topic"]: Range(one["topic_id"], one["start"], one["end"]) for one in found["inputs"]}
    states = [(state["key"], state["value"]) for state in found["states"]]
    body = Body(Counts(*found["counts"]), states, bytes((FORMAT,)) + found["writes"], found["ticked_ms"])
    return Proposal(found["task"], found["version"], inputs, found["proposer"], body, Kind(found["kind"]), log_id)


def writes(data: bytes) -> list[Write]:
    """The writes of a proposal that `decode` gave."""
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
