"""Records of the decision log as version 0.2 wrote and read them."""

import gzip
import io
import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Proposal
from onefold.processor.core.decision_log import ProposalBody, StatusRecord
from onefold.processor.core.errors import Refused
from onefold.processor.io import previous_proposals
from onefold.processor.io.contracts import FOLDER

_DECISION, _WRITES = (
    fastavro.parse_schema(json.loads((FOLDER / "engine" / f"{name}.avsc").read_text(encoding="utf-8")))
    for name in ("decision", "writes")
)
_EMPTY = {"version": 0, "inputs": [], "counts": [], "ticked_ms": 0, "states": [], "writes": b"", "note": b""}


def decisions_of_0_2() -> list[bytes]:
    """Values of a decision log of runner; see tests/data/0.2.0."""
    lines = gzip.decompress((Path(__file__).parents[1] / "data" / "0.2.0" / "runner.decisions.gz").read_bytes())
    return [b64decode(line) for line in lines.split()]


class PreviousProposals:
    """`core.decision_log.Proposals` of 0.2. Encoded writes begin with their format, as the product's decoder returns them."""

    def encode(self, proposal: Proposal) -> bytes:
        body: ProposalBody = proposal.body
        return _encoded(
            proposal.log_id,
            task=proposal.task,
            version=proposal.version,
            kind=proposal.kind.value,
            proposer=proposal.proposer,
            inputs=[{"topic": topic, **at._asdict()} for topic, at in proposal.inputs.items()],
            counts=list(body.counts),
            ticked_ms=body.ticked_ms,
            states=[{"key": key, "value": value} for key, value in body.states],
            writes=body.writes[1:],
        )

    def encode_note(self, note: StatusRecord) -> bytes:
        about = {"task": note.task, "proposer": note.proposer, "note": json.dumps(note.body).encode()}
        return _encoded(note.log_id, kind="note", **about)

    def decode(self, value: bytes | None) -> Proposal | StatusRecord | None:
        if not value or value[0] == 0:
            return None
        if value[0] > 1:
            raise Refused(Code.NEWER_VERSION, "start the newer one again")
        return previous_proposals.decode(value)

    def encode_writes(self, writes: Sequence[Write]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, _WRITES, [_fields(*write) for write in writes])
        return b"\x01" + buffer.getvalue()

    def writes(self, data: bytes) -> list[Write]:
        return previous_proposals.writes(data)


def _encoded(log_id: str, **fields: Any) -> bytes:
    buffer = io.BytesIO(b"\x01")
    buffer.seek(1)
    fastavro.schemaless_writer(buffer, _DECISION, {**_EMPTY, **fields})
    fastavro.schemaless_writer(buffer, fastavro.parse_schema("string"), log_id)
    return buffer.getvalue()


def _fields(topic: str, partition: int | None, key: bytes | None, value: bytes | None, headers: Any) -> dict[str, Any]:
    listed = [{"name": name, "value": content} for name, content in headers or ()]
    at = -1 if partition is None else partition
    return {"topic": topic, "partition": at, "key": key, "value": value, "headers": listed}
