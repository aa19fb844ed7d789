"""Which records were dead letters and have been replayed or dropped since: the topic `<name>.replays`.

A dead letter that is replayed comes once more at the end of its input, and in the same transaction a receipt says so here.
The receipt of a dropped one says that it does not come again. From then on the record at its first place has no effect, also
when the pipeline is reset with a handler that would take it. A replayed record would count twice, and a dropped one never
counts. So processors read the receipts when they start. None can appear for a record that they have not folded yet: it takes a
dead letter first.

A reset copies repartitioned records anew. So the receipt of a copy also names the original, which has no effect then either.
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

#: Of a receipt's form. What is only added needs no new number.
VERSION = 1


class Dropped(NamedTuple):
    """Who dropped a dead letter, and why."""

    by: str
    reason: str


class Copied(NamedTuple):
    """Of a repartitioned record: the original, and the signature of the pipeline that copied it (`Owner`)."""

    original: Place
    signature: str


class ParkedTurn(NamedTuple):
    """Of a dead letter of a parked key: the signature of the pipeline that wrote it (`Owner`), and its ticket as text."""

    signature: str
    ticket: str


class ReplayReceipt(NamedTuple):
    """A record was replayed, or dropped.

    Attributes:
        place: where it lay first.
        topic_id: Kafka's id of its topic: one that was made again under the same name has other records.
        letter: `topic/partition/offset` of its dead letter then.
        at_ms: when, in milliseconds since 1970.
        dropped: None: it was replayed.
        copied: None: it was no copy of a repartitioned record, or a release before this field wrote the receipt.
        parked: None: its key was not parked.
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
        """Key and value of its record."""
        body: dict[str, Any] = {
            "version": VERSION,
            "topic_id": self.topic_id,
            "letter": self.letter,
            "at_ms": self.at_ms,
        }
        if self.dropped is not None:
            # A version without this field takes the record for a replayed one, which has no effect at its first place either.
            body["dropped"] = self.dropped._asdict()
        if self.copied is not None:
            body["copied"] = {"original": _text(self.copied.original), "signature": self.copied.signature}
        if self.parked is not None:
            body["parked"] = self.parked._asdict()
        return _text(self.place).encode(), json.dumps(body).encode()

    @staticmethod
    def decode(key: bytes | None, value: bytes | None) -> ReplayReceipt:
        """The receipt. Raises ValueError, with a few words, when the bytes are none."""
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
    """All receipts of a pipeline, as far as they have been read."""

    def __init__(self, client: Mapping[str, str], topic: str) -> None:
        self._client = client
        self._topic = topic
        self._admin: AdminClient = kafka.connect(client)
        self._next = 0
        self._found: dict[tuple[Place, str], ReplayReceipt] = {}

    def read_on(self) -> None:
        """Read what has come since, up to the high watermark.

        Raises:
            Refused: one cannot be read, or some are gone. Who goes on without it counts a record twice.
            Retriable: the cluster does not answer.
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
        """The receipt of a record or of a copy of it, or None while neither was replayed or dropped."""
        return self._found.get((place, topic_id))

    def by_place(self, topic_ids: Mapping[str, str]) -> dict[Place, ReplayReceipt]:
        """Those of records of these very topics, and of copies of them."""
        return {place: found for (place, topic_id), found in self._found.items() if topic_ids.get(place[0]) == topic_id}


def _text(place: Place) -> str:
    return "{}/{}/{}".format(*place)


def _place(text: str) -> Place:
    """Raises ValueError when it is none."""
    topic, partition, offset = text.rsplit("/", 2)
    return topic, int(partition), int(offset)


def withdrawn(topology: Topology, client: Mapping[str, str]) -> dict[Place, ReplayReceipt]:
    """The input records that were replayed or dropped. Raises `Retriable` when the cluster does not answer, `Refused` when that
    cannot be known.
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
    """A codec to which the records with a receipt are dead letters: they count where they were replayed, or never."""

    def __init__(self, codec: Codec, receipts: Mapping[Place, ReplayReceipt]) -> None:
        self._decode, self._receipts = codec.decode, receipts
        self.encode, self.encode_state, self.decode_state = codec.encode, codec.encode_state, codec.decode_state

    def decode(self, record: Record) -> Any:
        """The value of an input record; raises `Rejected` also for one that was replayed or dropped."""
        receipt = self._receipts.get((record.topic, record.partition, record.offset))
        if receipt is None:
            return self._decode(record)
        if receipt.dropped is not None:
            raise Rejected(f"this record was {receipt}", Code.REPLAYED)
        raise Rejected("this record was replayed: the replayed copy counts, and this one does not", Code.REPLAYED)
