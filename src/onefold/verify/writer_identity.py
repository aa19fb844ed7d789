"""Whose record it is: which records of an input are copies and replays of this pipeline, and which are others'.

A copy and a replay name the pipeline that wrote them, its cluster and its life, which a reset ends, in a header: `cluster id/
pipeline/topic id of the changelog`. What another pipeline writes, a mirror of another cluster or any other program, is a record
like every other, whatever its headers say. Only copies and replays that another pipeline of the same cluster put into the same
topic, and copies of an earlier life, are no records of this one: their originals are there as well. A release before that header
named no pipeline: its copies and replays are told by what they name, and where it lies.
"""

from dataclasses import dataclass

from onefold.verify.parks import PARKED_HEADER, ParkTicket, is_drop, ticket_of
from onefold.verify.record import ReadRecord

#: The header by which a record says which input record caused it, as text `topic/partition/offset`.
SOURCE_HEADER = "onefold-source"
#: The header that a copy has besides: when its original was sent. What the pipeline feeds itself has none.
COPY_HEADER = "onefold-timestamp"
#: The header by which a record says that it was put back, and where it lay first, as text `topic/partition/offset`.
REPLAYS_HEADER = "onefold-replays"
#: The header that says who wrote a copy, a replay or a dead letter.
PIPELINE_HEADER = "onefold-pipeline"
# What the names of all these begin with.
_OWN = "onefold-"
# Of a time in milliseconds.
_TIME_DIGITS_MAX = 15


@dataclass(frozen=True)
class WriterIdentity:
    """A pipeline on a cluster, by Kafka's own id of that. `life`: the id of its changelog's topic; "": any."""

    cluster_id: str
    pipeline: str
    life: str = ""

    def wrote(self, record: ReadRecord) -> bool | None:
        """Whether this pipeline wrote a copy, a replay or a dead letter. None: it does not say who did."""
        signed = self._signed(record)
        return None if signed is None else signed.startswith(f"{self.cluster_id}/{self.pipeline}/".encode())

    def copied(self, record: ReadRecord) -> bytes | None:
        """What the original is of an input record that is a copy of this life's, or may be one. None: it is none."""
        named, signed = self._named(record, SOURCE_HEADER), self._signed(record)
        if signed is None:
            return named
        ours = self.is_this_life(signed.decode(errors="replace"))
        return named if ours and record.header(COPY_HEADER) is not None else None

    def is_this_life(self, signature: str) -> bool:
        """Whether this pipeline signed so in this life, or may have."""
        return signature.startswith(f"{self.cluster_id}/{self.pipeline}/{self.life}")

    def replayed(self, record: ReadRecord) -> bytes | None:
        """Where an input record lay first that this pipeline put back, or may have. None: it did not."""
        return None if self.wrote(record) is False else self._named(record, REPLAYS_HEADER)

    def ticket(self, record: ReadRecord) -> ParkTicket | None:
        """The turn of a replay or a drop of this life. None: it is none, or has none."""
        signed = self._signed(record)
        if signed is None or not self.is_this_life(signed.decode(errors="replace")) or self.replayed(record) is None:
            return None
        return ticket_of(record.header(PARKED_HEADER))

    def as_sent(self, record: ReadRecord) -> ReadRecord:
        """The record with the time and the headers that its sender gave it. A copy or a replay says the time in a header."""
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
        """Whether an input record is a copy or a replay for the states of another pipeline of the cluster, or of another life; or
        a drop of another life.
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
        """The place that the header names, when it is in the topic of the record."""
        named = record.header(header) if record.headers else None
        topic, *numbers = (named or b"").rsplit(b"/", 2)
        is_place = len(numbers) == 2 and all(map(bytes.isdigit, numbers))
        return named if is_place and topic == record.topic.encode() else None
