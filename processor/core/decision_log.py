"""The decision log as the runtime sees it: what its records hold, and the protocols of Kafka's and the simulated one."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from onefold.processor.core.abc import PartitionIdentity, Write
from onefold.processor.core.decision import Proposal
from onefold.processor.core.values import RecordCounts


class ProposalBody(NamedTuple):
    """What a proposal does, in the bytes in which everybody takes it over.

    Attributes:
        counts: how many records ended how.
        states: key and value of changelog records; a null value forgets the key.
        writes: records for other topics, encoded; `Proposals.writes` reads them.
        ticked_ms: the time of the last tick that is folded then, or 0.
    """

    counts: RecordCounts
    states: Sequence[tuple[bytes, bytes | None]]
    writes: bytes
    ticked_ms: int = 0


class StatusRecord(NamedTuple):
    """A record of the decision log by which nothing is decided: a replica tells the others something.

    Attributes:
        log_id: as of a `Proposal`.
    """

    task: int
    proposer: str
    body: Mapping[str, Any]
    log_id: str = ""


class Proposals(Protocol):
    """Records of a decision log, to bytes and back."""

    def encode(self, proposal: Proposal) -> bytes:
        """The record's value. The proposal's body is a `ProposalBody`."""

    def encode_note(self, note: StatusRecord) -> bytes:
        """The record's value."""

    def decode(self, value: bytes | None) -> Proposal | StatusRecord | None:
        """What the bytes are; None when no version would call them a proposal. Raises `Refused` for those of a newer one."""

    def encode_writes(self, writes: Sequence[Write]) -> bytes:
        """Records for other topics, as a body has them."""

    def writes(self, data: bytes) -> list[Write]:
        """They themselves."""


class DecisionLog(Protocol):
    """One partition of a decision log: append, and read all of it in order. It is never transactional (reliability R10).

    Methods may raise `Retriable` when the cluster does not answer.
    """

    def identity(self) -> PartitionIdentity:
        """Which topic it is now, and what it holds up to the high watermark."""

    def seek(self, offset: int) -> None:
        """Read from there on."""

    def append(self, value: bytes) -> None:
        """Send a record off. Whether it lies there is seen by reading it back, and in no other way. Raises `TooMuch`."""

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """Offset and value of the records that come next, in order; waits at most so long for the first.

        Raises `Corrupted` when what comes next was deleted meanwhile: the changelog has what it amounts to, or `begin` refuses.
        """

    def older_than(self, age_s: float) -> int:
        """All records before that offset are older than so many seconds, by their senders' clocks."""

    def delete_before(self, offset: int) -> None:
        """Delete the records before that offset. Only `runtime.retention` knows which may go."""

    def close(self) -> None:
        """Leave."""
