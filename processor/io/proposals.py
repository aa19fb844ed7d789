"""Records of a decision log, to bytes and back: one byte for the format, then Avro (avro/engine/decision.avsc).

What goes to other topics is Avro within Avro: a replica that adopts a decision needs the states alone.
"""

import io
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import fastavro

from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body, Note
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Counts
from onefold.processor.io.avro_encoder import number
from onefold.processor.io.contracts import FOLDER

#: The first byte of a record. Who finds a greater one cannot know what is decided.
FORMAT = 1

_PREFIX = bytes((FORMAT,))
_SCHEMA: Any = json.loads((FOLDER / "engine" / "decision.avsc").read_text())
_DECISION: Any = fastavro.parse_schema(_SCHEMA)
# What comes first: Avro has no names in its bytes, so whoever stops there has not read the rest.
_HEAD: Any = fastavro.parse_schema({**_SCHEMA, "fields": _SCHEMA["fields"][:4]})
_WRITES: Any = fastavro.parse_schema(json.loads((FOLDER / "engine" / "writes.avsc").read_text()))
_NOTE = "note"
_NOTHING: dict[str, Any] = {
    "version": 0,
    "inputs": [],
    "counts": [],
    "ticked_ms": 0,
    "states": [],
    "writes": b"",
    "note": b"",
}
# Of an optional value, and the end of an array.
_NULL, _VALUE, _END = b"\x00", b"\x02", b"\x00"


# What fastavro raises at bytes that are something else.
_NO_RECORD = (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, MemoryError)


class Head(NamedTuple):
    """Of a proposal what it takes to count: what it is for, and the version that it continues."""

    kind: Kind
    version: int


class AvroProposals:
    """See `core.decision_log.Proposals`."""

    def encode(self, proposal: Proposal) -> bytes:
        """The record's value."""
        body: Body = proposal.body
        return _encoded(
            {
                "task": proposal.task,
                "version": proposal.version,
                "kind": proposal.kind.value,
                "proposer": proposal.proposer,
                "inputs": [
                    {"topic": topic, "topic_id": topic_id, "start": start, "end": end}
                    for topic, (topic_id, start, end) in proposal.inputs.items()
                ],
                "counts": list(body.counts),
                "ticked_ms": body.ticked_ms,
                "states": [{"key": key, "value": value} for key, value in body.states],
                "writes": body.writes,
                "note": b"",
            }
        )

    def encode_note(self, note: Note) -> bytes:
        """The record's value."""
        body = json.dumps(note.body).encode()
        return _encoded({**_NOTHING, "task": note.task, "kind": _NOTE, "proposer": note.proposer, "note": body})

    def decode(self, value: bytes | None) -> Proposal | Note | None:
        """What the bytes are; None when no version would call them a proposal.

        Raises:
            Refused: a newer Onefold wrote them.
        """
        if not value or value[0] == 0:
            return None
        if value[0] > FORMAT:
            raise Refused(
                f"the decision log has a record of format {value[0]}, and this Onefold knows formats up to {FORMAT}: "
                f"start the newer one again"
            )
        try:
            return _decoded(fastavro.schemaless_reader(io.BytesIO(value[1:]), _DECISION, None))
        except _NO_RECORD:
            return None  # somebody wrote into the log what is no record of it

    def glance(self, value: bytes | None) -> Head | Note | None:
        """For who only watches: a note, or a proposal's head, without the cost of its body. None for all else, a newer Onefold's
        records among it.
        """
        if not value or value[0] != FORMAT:
            return None
        try:
            head: Any = fastavro.schemaless_reader(io.BytesIO(value[1:]), _HEAD, None)
            if head["kind"] == _NOTE:
                record = self.decode(value)
                return record if isinstance(record, Note) else None
            return Head(Kind(head["kind"]), head["version"])
        except _NO_RECORD:
            return None

    def encode_writes(self, writes: Iterable[Write]) -> bytes:
        """Records for other topics: an Avro array. By hand: fastavro takes three times as long, and there are many."""
        items = [_write(*write) for write in writes]
        return b"".join((number(len(items) << 1), *items, _END)) if items else _END

    def writes(self, data: bytes) -> list[Write]:
        """They themselves."""
        found: Any = fastavro.schemaless_reader(io.BytesIO(data), _WRITES, None)
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


def _encoded(record: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    buffer.write(_PREFIX)
    fastavro.schemaless_writer(buffer, _DECISION, record)
    return buffer.getvalue()


def _decoded(record: Any) -> Proposal | Note:
    if record["kind"] == _NOTE:
        body = json.loads(record["note"])
        if not isinstance(body, dict):
            raise ValueError(f"a note is an object, and not {body!r}")
        return Note(record["task"], record["proposer"], body)
    inputs = {one["topic"]: Range(one["topic_id"], one["start"], one["end"]) for one in record["inputs"]}
    states = [(state["key"], state["value"]) for state in record["states"]]
    body = Body(Counts(*record["counts"]), states, record["writes"], record["ticked_ms"])
    return Proposal(record["task"], record["version"], inputs, record["proposer"], body, Kind(record["kind"]))


def _write(topic: str, partition: int | None, key: bytes | None, value: bytes | None, headers: Any) -> bytes:
    parts = [_bytes(topic.encode()), number(1 if partition is None else partition << 1)]
    parts += [_optional(key), _optional(value)]
    if headers:
        parts.append(number(len(headers) << 1))
        for name, content in headers:
            parts += [_bytes(name.encode()), _optional(content)]
    parts.append(_END)
    return b"".join(parts)


def _bytes(data: bytes) -> bytes:
    return number(len(data) << 1) + data


def _optional(data: bytes | None) -> bytes:
    return _NULL if data is None else _VALUE + number(len(data) << 1) + data
