"""Verify replayed and dropped dead letters: the receipts in the topic `<pipeline>.replays`, against the records in the input.

A receipt says that a record no longer counts in its place. The verifier requires the dead letter of this record in addition.
For a replay, the verifier also requires the replayed record, exactly once, in the same partition and with the same bytes, with
the place in a header. For a drop, there must be no replayed record; for a parked key, one record in the input reports the drop.
The replayed record and the record of the drop name the ticket in the receipt, or no ticket.

The receipt for a copy of a repartitioned record names the original, and the signature with the changelog's topic id. After a
reset, the original is a dead letter instead, and is not copied again.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.verify.expect import ExpectedDeadLetter, Sent
from onefold.verify.log import Log, cannot_tell
from onefold.verify.parks import PARKED_HEADER, ParkTicket, is_drop, ticket_of
from onefold.verify.record import ReadRecord, Source, source_of
from onefold.verify.verdict import CannotTell, Finding
from onefold.verify.writer_identity import WriterIdentity

_ANSWER_S = 15.0


class ReceiptTurn(NamedTuple):
    """A receipt for the dead letter of a parked key since the last reset: whether the letter was dropped, and its ticket."""

    dropped: bool
    ticket: ParkTicket


#: By input record with a receipt, whether the record was dropped. For the original of a copy that was replayed before the last
#: reset, the place of the copy.
Receipts = Mapping[Source, bool | Source | ReceiptTurn]


@dataclass
class Replays:
    """The receipts, and the records found for them.

    Attributes:
        owner: the pipeline that replays and drops dead letters.
    """

    receipts: Receipts = field(default_factory=dict)
    owner: WriterIdentity = field(default_factory=lambda: WriterIdentity("", ""))
    _digests: dict[Source, bytes] = field(default_factory=dict)
    _found: dict[Source, list[tuple[Source, bytes, Sent]]] = field(default_factory=dict)
    # By the record of a dead letter, the records that report its drop.
    _drops: dict[Source, list[Source]] = field(default_factory=dict)
    # For each replayed record and each drop: the record of the dead letter, its own place, and its ticket.
    _turns: list[tuple[Source, Source, ParkTicket | None]] = field(default_factory=list)
    # The known timestamps and headers. A dead letter in a checkpoint has only its key and value left.
    _sent: dict[Source, Sent] = field(default_factory=dict)

    def withdrawn(self, record: ReadRecord, source: Source) -> bool:
        """Return whether the input record no longer counts in its place. Note replayed records and drops."""
        first = source_of(self.owner.replayed(record)) if record.headers else None
        if first is not None:
            self._turns.append((first, source, self.owner.ticket(record)))
        if first is not None and is_drop(record):
            self._drops.setdefault(first, []).append(source)
        elif first is not None and (self.owner.wrote(record) or first in self.receipts):
            self._found.setdefault(first, []).append((source, _digest(record.key, record.value), self._sent_of(record)))
        dropped = self._dropped(source)
        if dropped is None:
            return False
        if dropped is False:
            self._digests[source] = _digest(record.key, record.value)
            self._sent[source] = self._sent_of(record)
        elif dropped is not True:
            self._sent[dropped] = self._sent_of(record)  # without a digest, since a copy has a different key
        return True

    def parked(self, source: Source) -> ParkTicket | None:
        """Return the ticket in the dead letter of a record with a receipt, since the last reset; None: no ticket."""
        found = self.receipts.get(source)
        return found.ticket if isinstance(found, ReceiptTurn) else None

    def _dropped(self, source: Source) -> bool | Source | None:
        found = self.receipts.get(source)
        return found.dropped if isinstance(found, ReceiptTurn) else found

    def _sent_of(self, record: ReadRecord) -> Sent:
        return Sent.of(self.owner.as_sent(record))

    def go_on(
        self, receipts: Receipts, dead: Mapping[Source, ExpectedDeadLetter], positions: Mapping[tuple[str, int], int]
    ) -> bool:
        """Take the present receipts. Return whether the records read before remain valid. They do if each record with a new
        receipt was a dead letter: the record changed nothing, and changes nothing now.

        Args:
            dead: the dead letters among the records read.
            positions: the offsets up to which the inputs were read.
        """
        if not self.receipts.items() <= receipts.items():
            return False
        for source in receipts.keys() - self.receipts.keys():
            if source.offset < positions.get(source[:2], 0):
                letter, found = dead.get(source), receipts[source]
                dropped = found.dropped if isinstance(found, ReceiptTurn) else found
                turn = str(found.ticket) if isinstance(found, ReceiptTurn) else None
                if letter is not None and letter.parked != turn:
                    return False
                if letter is None or isinstance(dropped, Source) or (letter.is_cut() and not dropped):
                    return False
                if not dropped:
                    self._digests[source] = _digest(letter.key, letter.head)
        self.receipts = receipts
        return True

    def findings(self) -> Iterator[Finding]:
        """Yield dead letters replayed twice, replayed with a change, never replayed, or replayed after a drop."""
        for first in {**self._digests, **self._sent}:
            if first not in self._found:
                text = "a receipt says that the dead letter was replayed, and no record of the input says so"
                yield Finding("missing replay", first.topic, source=str(first), text=text)
        yield from self._wrong_drops()
        yield from self._wrong_turns()
        texts: dict[object, str] = {
            None: "no receipt says so",
            True: "the dead letter was dropped",
        }
        for first, found in self._found.items():
            dropped = self._dropped(first)
            for source, *_ in found[1:] if dropped is False else found:
                text = texts.get(dropped, "the dead letter was replayed before")
                yield Finding("doubled replay", first.topic, output=str(source), source=str(first), text=text)
            for source, digest, sent in found:
                if wrong := self._sent.get(first, sent).differing(sent):
                    text = "the replayed record has the time and the headers of the dead letter's record"
                    yield Finding("changed replay", first.topic, {}, wrong, str(source), str(first), text)
                if source[:2] != first[:2] or digest != self._digests.get(first, digest):
                    text = "the replayed record is not the dead letter's record"
                    yield Finding("changed replay", first.topic, output=str(source), source=str(first), text=text)

    def _wrong_drops(self) -> Iterator[Finding]:
        """Verify the records of drops, because later events of a parked key wait for these records."""
        for first, found in self.receipts.items():
            if isinstance(found, ReceiptTurn) and found.dropped and first not in self._drops:
                text = "a receipt says that the dead letter of a parked key was dropped, and no record of the input says so"
                yield Finding("missing replay", first.topic, source=str(first), text=text)
        for first, drops in self._drops.items():
            for source in drops[1:] if self._dropped(first) is True else drops:
                text = "the dead letter was dropped before, or no receipt says so"
                yield Finding("doubled replay", first.topic, output=str(source), source=str(first), text=text)

    def _wrong_turns(self) -> Iterator[Finding]:
        """Verify the tickets of replays and drops, because the processor waits for these tickets."""
        for first, source, named in self._turns:
            if first in self.receipts and (wanted := self.parked(first)) != named:
                turns = {PARKED_HEADER: (wanted and str(wanted), named and str(named))}
                text = "the replay or the drop names another turn than its receipt"
                yield Finding("changed replay", first.topic, {}, turns, str(source), str(first), text)


def read(client: dict[str, Any], owner: WriterIdentity, topic_ids: Mapping[str, str]) -> Receipts:
    """Return the receipts of a pipeline. Raises `CannotTell`.

    Args:
        topic_ids: the present ids of the inputs; an earlier topic of the same name had different records.
    """
    topic = f"{owner.pipeline}.replays"
    admin = kafka_client.admin(client)
    try:
        if topic not in admin.list_topics(timeout=_ANSWER_S).topics:
            # Kafka hides a topic from a login without the right Describe. Without receipts, a replayed record would count
            # twice.
            if kafka_client.undescribable(admin, [topic], _ANSWER_S):
                raise CannotTell(Code.KAFKA_RIGHT, kafka_client.cannot_describe(admin, [topic]).sentence)
            return {}
    except KafkaException as error:
        raise cannot_tell(error, admin, f"Kafka at {client['bootstrap.servers']} does not answer") from None
    records: list[ReadRecord] = []
    with closing(Log(client, [topic])) as log:
        log.read(log.stable_ends(), records.append)
    return decode(records, owner, topic_ids)


def decode(records: Iterable[ReadRecord], owner: WriterIdentity, topic_ids: Mapping[str, str]) -> Receipts:
    """The receipts in these records. Raises `CannotTell`."""
    found: dict[Source, bool | Source | ReceiptTurn] = {}
    for record in records:
        try:
            body = json.loads(record.value or b"")
            topic_id, dropped = body["topic_id"], "dropped" in body
            copied = body.get("copied") or {"original": "", "signature": ""}
            original, signature = source_of(copied["original"].encode()), copied["signature"]
            parked = body.get("parked") or {"ticket": "", "signature": ""}
            ticket = ticket_of(parked["ticket"].encode())
            ours = owner.is_this_life(parked["signature"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CannotTell(
                Code.RECORD_UNREADABLE,
                f"the receipt at {record.topic}/{record.partition}/{record.offset} cannot be read",
            ) from None
        first = source_of(record.key)
        if first is not None and topic_ids.get(first.topic) == topic_id:
            found.setdefault(first, dropped if ticket is None or not ours else ReceiptTurn(dropped, ticket))
            if original is not None and not owner.is_this_life(signature):
                found.setdefault(original, dropped or first)
    return found


def _digest(key: bytes | None, value: bytes | None) -> bytes:
    parts = (b"" if key is None else b"k%d:%b" % (len(key), key), b"" if value is None else b"v" + value)
    return hashlib.sha256(b"".join(parts)).digest()
