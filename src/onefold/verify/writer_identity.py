"""The writer of a record: find the copies and replays of this pipeline in an input.

A copy and a replay name their writer in a header: `cluster id/pipeline/topic id of the changelog`. A reset recreates the
changelog, so the topic id distinguishes the time before and after. Records of a different cluster, such as mirrored ones, or of
any program are ordinary records, whatever their headers say.

The verifier skips copies and replays by a different pipeline of the same cluster, and copies from before the last reset. Their
originals are in the input as well.

Old releases wrote no such header. A copy or replay without the header is recognized by the place in `SOURCE_HEADER` or
`REPLAYS_HEADER`, in the topic of the record.
"""

from dataclasses import dataclass

from onefold.verify.parks import PARKED_HEADER, ParkTicket, is_drop, ticket_of
from onefold.verify.record import ReadRecord

#: The header with the input record that caused a record, as text `topic/partition/offset`.
SOURCE_HEADER = "onefold-source"
#: A further header of a copy or a replay: the timestamp of its original. Feedback records have no such header.
COPY_HEADER = "onefold-timestamp"
#: The header of a replayed record, with the first place of the record, as text `topic/partition/offset`.
REPLAYS_HEADER = "onefold-replays"
#: The header with the writer of a copy, a replay or a dead letter.
PIPELINE_HEADER = "onefold-pipeline"
# The prefix of all these headers.
_OWN = "onefold-"
# The limit for a time in milliseconds.
_TIME_DIGITS_MAX = 15


@dataclass(frozen=True)
class WriterIdentity:
    """A pipeline on a cluster. `life`: the topic id of its changelog, which a reset changes; "": any."""

    cluster_id: str
    pipeline: str
    life: str = ""

    def wrote(self, record: ReadRecord) -> bool | None:
        """Return whether this pipeline wrote a copy, a replay or a dead letter. None: the record names no writer."""
        signed = self._signed(record)
        return None if signed is None else signed.startswith(f"{self.cluster_id}/{self.pipeline}/".encode())

    def copied(self, record: ReadRecord) -> bytes | None:
        """Return the original of an input record, if the record is a copy by this pipeline since the last reset, or may be an
        unsigned copy. None: no copy.
        """
        named, signed = self._named(record, SOURCE_HEADER), self._signed(record)
        if signed is None:
            return named
        ours = self.is_this_life(signed.decode(errors="replace"))
        return named if ours and record.header(COPY_HEADER) is not None else None

    def is_this_life(self, signature: str) -> bool:
        """Return whether a signature is of this pipeline since the last reset; with an empty `life`, at any time."""
        return signature.startswith(f"{self.cluster_id}/{self.pipeline}/{self.life}")

    def replayed(self, record: ReadRecord) -> bytes | None:
        """Return the first place of an input record, if the record is a replay by this pipeline, or may be an unsigned
        replay. None: no replay.
        """
        return None if self.wrote(record) is False else self._named(record, REPLAYS_HEADER)

    def ticket(self, record: ReadRecord) -> ParkTicket | None:
        """Return the ticket of a replay or a drop since the last reset. None: no replay or drop, or no ticket."""
        signed = self._signed(record)
        if signed is None or not self.is_this_life(signed.decode(errors="replace")) or self.replayed(record) is None:
            return None
        return ticket_of(record.header(PARKED_HEADER))

    def as_sent(self, record: ReadRecord) -> ReadRecord:
        """Return the record with its sender's timestamp and headers. A copy or a replay has the timestamp in a header."""
        if not record.headers:
            return record
        sent_ms = record.timestamp_ms
        if self.copied(record) is not None or self.replayed(record) is not None:
            digits = record.header(COPY_HEADER) or b""
            sent_ms = int(digits) if digits.isdigit() and len(digits) <= _TIME_DIGITS_MAX else sent_ms
        return record._replace(
            headers=[one for one in record.headers if not one[0].startswith(_OWN)], timestamp_ms=sent_ms
        )

    def is_of_another(self, record: ReadRecord) -> bool:
        """Return whether to skip an input record: a copy or a replay by a different pipeline of the cluster; a copy or a drop
        from before the last reset.
        """
        signed = self._signed(record)
        if signed is None or not signed.startswith(f"{self.cluster_id}/".encode()):
            return False
        if self.copied(record) is not None or self.replayed(record) is not None:
            return is_drop(record) and not self.is_this_life(signed.decode(errors="replace"))
        copy = record.header(COPY_HEADER) is not None and self._named(record, SOURCE_HEADER) is not None
        return copy or self._named(record, REPLAYS_HEADER) is not None

    @staticmethod
    def _signed(record: ReadRecord) -> bytes | None:
        return record.header(PIPELINE_HEADER) if record.headers else None

    @staticmethod
    def _named(record: ReadRecord, header: str) -> bytes | None:
        """Return the place in the header, if the place is in the topic of the record."""
        named = record.header(header) if record.headers else None
        topic, *numbers = (named or b"").rsplit(b"/", 2)
        is_place = len(numbers) == 2 and all(map(bytes.isdigit, numbers))
        return named if is_place and topic == record.topic.encode() else None
