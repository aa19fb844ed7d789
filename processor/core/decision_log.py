"""The decision log for the runtime: contents of the records, and the protocols of the Kafka and the simulated log."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onefold.processor.core.abc import PartitionIdentity, Write
from onefold.processor.core.decision import Proposal
from onefold.processor.core.values import RecordCounts


class ProposalBody(NamedTuple):
    """The effects of a proposal, as encoded bytes that every replica applies unchanged.

    Attributes:
        counts: the number of records by result.
        states: key and value of changelog records; a null value forgets the key.
        writes: records for other topics, encoded; `Proposals.writes` decodes them.
        ticked_ms: the time of the last tick folded so far, or 0.
    """

    counts: RecordCounts
    states: Sequence[tuple[bytes, bytes | None]]
    writes: bytes
    ticked_ms: int = 0


class StatusRecord(NamedTuple):
    """A record of the decision log that decides nothing: a replica's message to its peers.

    Attributes:
        log_id: see `Proposal`.
    """

    task: int
    proposer: str
    body: Mapping[str, Any]
    log_id: str = ""


class Proposals(Protocol):
    """Encode and decode the records of a decision log."""

    def encode(self, proposal: Proposal) -> bytes:
        """Return the record's value. The proposal's body is a `ProposalBody`."""

    def encode_note(self, note: StatusRecord) -> bytes:
        """Return the record's value."""

    def decode(self, value: bytes | None) -> Proposal | StatusRecord | None:
        """Return the decoded value; None if no version would read a proposal. Raises `Refused` for a newer version's record."""

    def encode_writes(self, writes: Sequence[Write]) -> bytes:
        """Encode records for other topics, for a `ProposalBody`."""

    def writes(self, data: bytes) -> list[Write]:
        """Decode the result of `encode_writes`."""


class DecisionLog(Protocol):
    """One partition of a decision log: append records, and read all records in order. Appends are never transactional.

    Methods may raise `Retriable` if the cluster does not respond.
    """

    def identity(self) -> PartitionIdentity:
        """Return the topic's present id, and the partition's offsets up to the high watermark."""

    def seek(self, offset: int) -> None:
        """Set the offset to read next."""

    def append(self, value: bytes) -> None:
        """Send a record. Only reading the record back shows that the log has it. Raises `TooMuch`."""

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """Return offset and value of the next records, in order. Waits at most `timeout_s` for the first record.

        Raises `Corrupted` if the next records were deleted. The task then restores: the changelog has their result, or `begin`
        refuses.
        """

    def older_than(self, age_s: float) -> int:
        """Return an offset. All records before the offset are older than `age_s` by their senders' clocks."""

    def delete_before(self, offset: int) -> None:
        """Delete the records before the offset. Only `runtime.retention` decides which records may be deleted."""

    def close(self) -> None:
        """Close the log's clients."""
