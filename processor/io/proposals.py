"""Encode and decode the records of a decision log: one byte for the format, then msgpack.

The writes are msgpack within msgpack, because a replica that applies a decision needs the states alone.

Every replica must decode the same bytes to the same proposal. The decoder has a type for each value, and accepts all bytes of a
record or none. msgpack has several encodings of one value, such as integers of several widths. All of them decode to the same
proposal, and a replica compares bytes only with its own pending proposal.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, json, msgpack
from msgspec.structs import astuple

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Proposal, ProposalKind, Range
from onefold.processor.core.decision_log import ProposalBody, StatusRecord
from onefold.processor.core.errors import Refused
from onefold.processor.io import previous_proposals

#: The first byte of a record. This version refuses a greater one.
FORMAT = 2
_PREFIX = bytes((FORMAT,))


class _Proposal(Struct, array_like=True, forbid_unknown_fields=True, tag="proposal"):
    """The fields of `Proposal`, in the same order."""

    task: int
    version: int
    inputs: Mapping[str, Range]
    proposer: str
    body: ProposalBody
    kind: ProposalKind
    log_id: str


class _Note(Struct, array_like=True, forbid_unknown_fields=True, tag="note"):
    """The fields of `StatusRecord`, in the same order."""

    task: int
    proposer: str
    body: bytes  # JSON, which has fewer types than msgpack
    log_id: str


_record_of = msgpack.Decoder(_Proposal | _Note).decode
_writes_of = msgpack.Decoder(list[Write]).decode
_note_body_of = json.Decoder(dict[str, object]).decode


class MsgpackProposals:
    """The msgpack encoding of proposals (see `core.decision_log.Proposals`)."""

    def encode(self, proposal: Proposal) -> bytes:
        """Return the record's value."""
        return _PREFIX + msgpack.encode(_Proposal(*proposal))

    def encode_note(self, note: StatusRecord) -> bytes:
        """Return the record's value."""
        return _PREFIX + msgpack.encode(_Note(note.task, note.proposer, json.encode(note.body), note.log_id))

    def decode(self, value: bytes | None) -> Proposal | StatusRecord | None:
        """Return the decoded value; None if no version would read a proposal.

        Raises:
            Refused: a newer Onefold wrote the record.
        """
        if not value or value[0] == 0:
            return None
        if value[0] > FORMAT:
            raise Refused(
                Code.NEWER_VERSION,
                f"the decision log has a record of format {value[0]}, and this Onefold knows formats up to {FORMAT}: "
                f"start the newer one again",
            )
        if value[0] == previous_proposals.FORMAT:
            return previous_proposals.decode(value)
        try:
            record = _record_of(memoryview(value)[1:])
            if isinstance(record, _Proposal):
                return Proposal(*astuple(record))
            return StatusRecord(record.task, record.proposer, _note_body_of(record.body), record.log_id)
        except (ValueError, RecursionError):  # from msgspec, or for text that is not UTF-8
            return None

    def encode_writes(self, writes: Sequence[Write]) -> bytes:
        """Encode records for other topics, for a `ProposalBody`."""
        return msgpack.encode(writes)

    def writes(self, data: bytes) -> list[Write]:
        """Decode the result of `encode_writes`. Raises ValueError if the bytes are invalid."""
        return previous_proposals.writes(data) if data[:1] == b"\x01" else _writes_of(data)
