"""The records that were dead letters and have since been replayed or dropped: the topic `<name>.replays`.

A replay appends the record to the end of its input. The same transaction writes a receipt to this topic. A drop writes a
receipt, and for a parked key also a record without an event to the input. After the receipt, the record at its first place has
no effect, even after a reset with a handler that would accept the record. Otherwise a replayed record would count twice, and a
dropped record would count. Therefore processors read the receipts at their start. A receipt cannot precede the fold of its
record, because a receipt needs a dead letter.

A reset copies repartitioned records again. So the receipt of a copy also names the original, which then has no effect either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec
from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record
from onefold.processor.io import admin as kafka
from onefold.processor.io.kafka_errors import check_visible
from onefold.processor.io.range_reader import Place, between

#: The version of a receipt's format. An added field needs no new number.
VERSION = 1


class Dropped(NamedTuple):
    """The person who dropped a dead letter, and the reason."""

    by: str
    reason: str


class Copied(NamedTuple):
    """For a repartitioned record: the original, and the signature of the pipeline that made the copy (`Owner`)."""

    original: Place
    signature: str


class ParkedTurn(NamedTuple):
    """For a dead letter of a parked key: the signature of the writing pipeline (`Owner`), and the ticket as text."""

    signature: str
    ticket: str


class ReplayReceipt(NamedTuple):
    """The record of a replay or a drop.

    Attributes:
        place: the record's first place.
        topic_id: Kafka's id of the record's topic. A recreated topic of the same name has other records.
        letter: `topic/partition/offset` of the dead letter.
        at_ms: the time, in milliseconds since 1970.
        dropped: None: the record was replayed.
        copied: None: the record was no repartitioned copy, or the receipt is from a release without this field.
        parked: None: the key was not parked.
    """

    place: Place
    topic_id: str
    letter: str
    at_ms: int
    dropped: Dropped | None = None
    copied: Copied | None = None
    parked: ParkedTurn | None = None

    def __str__(self) -> str:
        return "replayed" if self.dropped is None else f"dropped by {self.dropped.by}: {self.dropped.reason}"

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value of the receipt's record."""
        body: dict[str, Any] = {
            "version": VERSION,
            "topic_id": self.topic_id,
            "letter": self.letter,
            "at_ms": self.at_ms,
        }
        if self.dropped is not None:
            # A version without this field sees a replayed record, which has no effect at its first place either.
            body["dropped"] = self.dropped._asdict()
        if self.copied is not None:
            body["copied"] = {"original": _text(self.copied.original), "signature": self.copied.signature}
        if self.parked is not None:
            body["parked"] = self.parked._asdict()
        return _text(self.place).encode(), json.dumps(body).encode()

    @staticmethod
    def decode(key: bytes | None, value: bytes | None) -> ReplayReceipt:
        """Return the receipt. Raises ValueError with a short reason if the bytes are no receipt."""
        try:
            place = _place((key or b"").decode())
            body = json.loads(value or b"")
            version, topic_id, letter, at_ms = (body[name] for name in ("version", "topic_id", "letter", "at_ms"))
            dropped = Dropped(*(body["dropped"][name] for name in Dropped._fields)) if "dropped" in body else None
            copied = Copied(*(body["copied"][name] for name in Copied._fields)) if "copied" in body else None
            parked = ParkedTurn(*(body["parked"][name] for name in ParkedTurn._fields)) if "parked" in body else None
            if copied is not None:
                copied = copied._replace(original=_place(str(copied.original)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"it has no place as its key, or no JSON object with its fields: {error}") from error
        texts = topic_id, letter, *(dropped or ()), *(copied[1:] if copied else ()), *(parked or ())
        if not (type(version) is type(at_ms) is int and all(type(text) is str for text in texts)):
            raise ValueError("its fields are of other types")
        if version > VERSION:
            raise ValueError("it was written by a newer Onefold")
        return ReplayReceipt(place, topic_id, letter, at_ms, dropped, copied, parked)


class Receipts:
    """The receipts of a pipeline, as far as read."""

    def __init__(self, client: Mapping[str, str], topic: str) -> None:
        self._client = client
        self._topic = topic
        self._admin: AdminClient = kafka.connect(client)
        self._next = 0
        self._found: dict[tuple[Place, str], ReplayReceipt] = {}

    def read_on(self) -> None:
        """Read the new receipts, up to the high watermark.

        Raises:
            Refused: a receipt cannot be read, or receipts are missing. Without a receipt, a record would count twice.
            Retriable: the cluster does not respond.
        """
        _, start, end = kafka.identity(self._admin, self._topic, 0)
        if start > self._next:
            raise self._refused(f"{self._topic} begins at offset {start}, and has lost receipts of replays")
        for message in between(self._client, {(self._topic, 0): (self._next, end)}):
            try:
                receipt = ReplayReceipt.decode(message.key(), message.value())
            except ValueError as error:
                at = f"{self._topic}/0/{message.offset()}"
                raise self._refused(f"{at} is no receipt of a replay: {error}") from error
            self._found.setdefault((receipt.place, receipt.topic_id), receipt)
            if receipt.copied is not None:
                self._found.setdefault((receipt.copied.original, receipt.topic_id), receipt)
        self._next = max(self._next, end)

    def _refused(self, what: str) -> Refused:
        return Refused(
            Code.REPLAYED,
            f"{what}. A replayed record could count twice: restore the topic, or begin with new inputs, by "
            f"`onefold reset --inputs` of the pipeline",
        )

    def of(self, place: Place, topic_id: str) -> ReplayReceipt | None:
        """Return the receipt of a record or of a copy of the record; None if neither was replayed or dropped."""
        return self._found.get((place, topic_id))

    def by_place(self, topic_ids: Mapping[str, str]) -> dict[Place, ReplayReceipt]:
        """Return the receipts of records in the topics with these ids, and of copies of such records."""
        return {place: found for (place, topic_id), found in self._found.items() if topic_ids.get(place[0]) == topic_id}


def _text(place: Place) -> str:
    return "{}/{}/{}".format(*place)


def _place(text: str) -> Place:
    """Parse a place. Raises ValueError for an invalid text."""
    topic, partition, offset = text.rsplit("/", 2)
    return topic, int(partition), int(offset)


def withdrawn(topology: Topology, client: Mapping[str, str]) -> dict[Place, ReplayReceipt]:
    """Return the receipts of replayed or dropped input records, by the record's place.

    Raises:
        Retriable: the cluster does not respond.
        Refused: the receipts cannot be read.
    """
    admin = kafka.connect(client)
    there = kafka.existing(admin)
    if topology.replays not in there:
        check_visible(admin, [topology.replays])
        return {}
    receipts = Receipts(client, topology.replays)
    receipts.read_on()
    return receipts.by_place(kafka.ask_topic_ids(admin, [topic for topic in topology.reads if topic in there])())


class WithoutWithdrawn:
    """A codec that rejects the records with a receipt. A replayed record counts at its new place, a dropped record never."""

    def __init__(self, codec: Codec, receipts: Mapping[Place, ReplayReceipt]) -> None:
        self._decode, self._receipts = codec.decode, receipts
        self.encode, self.encode_state, self.decode_state = codec.encode, codec.encode_state, codec.decode_state

    def decode(self, record: Record) -> Any:
        """Return the value of an input record. Raises `Rejected` for a replayed or dropped record, too."""
        receipt = self._receipts.get((record.topic, record.partition, record.offset))
        if receipt is None:
            return self._decode(record)
        if receipt.dropped is not None:
            raise Rejected(f"this record was {receipt}", Code.REPLAYED)
        raise Rejected("this record was replayed: the replayed copy counts, and this one does not", Code.REPLAYED)
