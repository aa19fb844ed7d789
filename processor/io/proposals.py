"""Records of a decision log, to bytes and back: one byte for the format, then Avro (avro/engine/decision.avsc).
After that comes the id of the log that it was written for, as an Avro string. Who does not know of it stops before it.

What goes to other topics is Avro within Avro: a replica that adopts a decision needs the states alone.
"""

import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import fastavro

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body, Note
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Counts
from onefold.processor.io.contracts import FOLDER
from onefold.processor.io.decision_bytes import (
    decode_bytes,
    decode_states,
    decode_writes,
    encode_bytes,
    encode_states,
    encode_writes,
)

#: The first byte of a record. Who finds a greater one cannot know what is decided.
FORMAT = 1

_PREFIX = bytes((FORMAT,))
_SCHEMA: Any = json.loads((FOLDER / "engine" / "decision.avsc").read_text(encoding="utf-8"))
# What comes first, and all that comes before the states, of which there are many. Avro has no names in its bytes: whoever stops
# there has not read the rest, and the rest can be written after it.
_HEAD: Any = fastavro.parse_schema({**_SCHEMA, "fields": _SCHEMA["fields"][:4]})
_BEFORE_STATES: Any = fastavro.parse_schema({**_SCHEMA, "fields": _SCHEMA["fields"][:7]})
_NOTE = "note"


# What fastavro, the readers by hand and json raise at bytes that are something else.
_NO_RECORD = (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, MemoryError, RecursionError)


class Head(NamedTuple):
    """The header of a proposal: its task, its kind, the version that it continues, and its author."""

    task: int
    kind: Kind
    version: int
    proposer: str


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
            },
            body.states,
            body.writes,
            b"",
            proposal.log_id,
        )

    def encode_note(self, note: Note) -> bytes:
        """The record's value."""
        body = json.dumps(note.body).encode()
        head = {"task": note.task, "version": 0, "kind": _NOTE, "proposer": note.proposer}
        return _encoded({**head, "inputs": [], "counts": [], "ticked_ms": 0}, [], b"", body, note.log_id)

    def decode(self, value: bytes | None) -> Proposal | Note | None:
        """What the bytes are; None when no version would call them a proposal.

        Raises:
            Refused: a newer Onefold wrote them.
        """
        if not value or value[0] == 0:
            return None
        if value[0] > FORMAT:
            raise Refused(
                Code.NEWER_VERSION,
                f"the decision log has a record of format {value[0]}, and this Onefold knows formats up to {FORMAT}: "
                f"start the newer one again",
            )
        try:
            return _decoded(value)
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
            return Head(head["task"], Kind(head["kind"]), head["version"], head["proposer"])
        except _NO_RECORD:
            return None

    def encode_writes(self, writes: Sequence[Write]) -> bytes:
        """Records for other topics: an Avro array."""
        return encode_writes(writes)

    def writes(self, data: bytes) -> list[Write]:
        """They themselves."""
        return decode_writes(data)


def _encoded(
    before: dict[str, Any], states: Sequence[tuple[bytes, bytes | None]], writes: bytes, note: bytes, log_id: str
) -> bytes:
    buffer = io.BytesIO()
    buffer.write(_PREFIX)
    fastavro.schemaless_writer(buffer, _BEFORE_STATES, before)
    # Avro writes a string as it writes bytes.
    ends = encode_bytes(writes), encode_bytes(note), encode_bytes(log_id.encode())
    return b"".join((buffer.getvalue(), encode_states(states), *ends))


def _decoded(value: bytes) -> Proposal | Note:
    stream = io.BytesIO(value)
    stream.seek(len(_PREFIX))
    before: Any = fastavro.schemaless_reader(stream, _BEFORE_STATES, None)
    states, at = decode_states(value, stream.tell())
    writes, at = decode_bytes(value, at)
    note, at = decode_bytes(value, at)
    # An earlier Onefold wrote nothing there.
    log_id = decode_bytes(value, at)[0].decode() if at < len(value) else ""
    if before["kind"] == _NOTE:
        told = json.loads(note)
        if not isinstance(told, dict):
            raise ValueError(f"a note is an object, and not {told!r}")
        return Note(before["task"], before["proposer"], told, log_id)
    inputs = {one["topic"]: Range(one["topic_id"], one["start"], one["end"]) for one in before["inputs"]}
    body = Body(Counts(*before["counts"]), states, writes, before["ticked_ms"])
    return Proposal(before["task"], before["version"], inputs, before["proposer"], body, Kind(before["kind"]), log_id)
