"""Read dead letters: their list, contents and sources, and whether they were replayed or dropped.

A dead letter has the first 64 KiB of the original key and value. The headers and the timestamp of the sender, and the rest of a
large value, are read from the source record while Kafka retains it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from onefold.config.errors import UserError, of_kafka, of_processor
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.operate.record_reader import NoPlace, RecordPlace
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading
from onefold.processor.core.errors import ProcessorError, Rejected
from onefold.processor.core.owner import PIPELINE_HEADER, Owner
from onefold.processor.core.parking import Ticket
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import PARKED_HEADER, SOURCE_HEADER, Envelope, Record
from onefold.processor.runtime import dead_letters as written

if TYPE_CHECKING:
    from confluent_kafka import Message
    from confluent_kafka.admin import AdminClient

    from onefold.processor.io.replays import Receipts, ReplayReceipt
    from onefold.processor.io.serde import AvroCodec


def place(text: str) -> RecordPlace:
    """The place of a text TOPIC/PARTITION/OFFSET. Raises UserError (exit code 2) for any other text."""
    try:
        return RecordPlace.parse(text)
    except NoPlace as error:
        hint = "Write it as TOPIC/PARTITION/OFFSET, runner.updates.dead/0/12."
        raise UserError(Code.ARGUMENT_WRONG, str(error), hint, USAGE) from None


class Letter(NamedTuple):
    """A dead letter as stored in its topic.

    Attributes:
        place: the place of the dead letter.
        source: the place of the rejected record; None if the header names no place.
        at_ms: when the dead letter was written, in milliseconds since 1970.
        reason: why the record was rejected.
        key, value: of the rejected record, or their first 64 KiB.
        sha256, length: of the complete value of the rejected record.
        signature: the pipeline and the cluster of the writer (`Owner`); None if the header is missing.
        ticket: the turn of the dead letter if its key is parked.
    """

    place: RecordPlace
    source: RecordPlace | None
    at_ms: int
    reason: str
    key: bytes | None
    value: bytes | None
    sha256: str
    length: int
    signature: bytes | None = None
    ticket: Ticket | None = None

    @property
    def whole(self) -> bool:
        """Whether the dead letter holds the complete key and value."""
        return len(self.value or b"") == self.length and len(self.key or b"") < written.VALUE_BYTES_MAX

    @property
    def at(self) -> datetime:
        """When the dead letter was written."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class Original(NamedTuple):
    """The rejected record of a dead letter.

    Attributes:
        key, value: complete; None also if the record has none.
        envelope: headers and timestamp from the source topic. None: the source record is gone, and key and value come from the
            dead letter.
        lacks: the missing parts of the record, in a few words, or "".
        is_cut: whether parts of key or value are gone.
    """

    key: bytes | None
    value: bytes | None
    envelope: Envelope | None
    lacks: str = ""
    is_cut: bool = False


@dataclass(frozen=True)
class Wanted:
    """A selection of dead letters. All conditions must hold.

    Attributes:
        reason: a part of the reason, in any case.
        since_ms, until_ms: range of the times of writing; the end is excluded.
        key: the Kafka key of the record as text, or the state key of a decodable value.
        topic: the input, or the topic of its dead letters.
        places: of dead letters, or of their sources; empty: all.
        open: only dead letters that were neither replayed nor dropped.
    """

    reason: str = ""
    since_ms: int = 0
    until_ms: int | None = None
    key: str | None = None
    topic: str | None = None
    places: frozenset[RecordPlace] = frozenset()
    open: bool = False

    def takes(self, letter: Letter, state_key: Callable[[Letter], str | None]) -> bool:
        """Whether the selection includes a dead letter. `open` is not checked."""
        if self.places and not {letter.place, letter.source} & self.places:
            return False
        if self.reason.lower() not in letter.reason.lower() or letter.at_ms < self.since_ms:
            return False
        if self.until_ms is not None and letter.at_ms >= self.until_ms:
            return False
        return self.key is None or self.key in (_text(letter.key), state_key(letter))


class DeadLetters:
    """The dead letters of one pipeline. Methods raise UserError if Kafka does not answer or a topic is missing."""

    def __init__(self, domain: str, settings: Settings) -> None:
        (self.name,) = pipelines.checked([domain])
        self.client = settings.usable_client()
        self.replication = settings.replication()
        self._registry = settings.schema_registry_url
        with said(self.client):
            self.topology: Topology = loading.topology_of(self.name)

    @cached_property
    def codec(self) -> AvroCodec:
        """The codec with the present contracts of the pipeline."""
        with said(self.client):
            return loading.codec_of(self.topology, self._registry)

    @cached_property
    def topic_ids(self) -> Mapping[str, str]:
        """The present topic ids of the inputs by name."""
        from onefold.processor.io import admin

        with said(self.client):
            asked = admin.connect(self.client)
            there = admin.existing(asked)
            return admin.ask_topic_ids(asked, [topic for topic in self.topology.reads if topic in there])()

    @cached_property
    def deleted_by_reset(self) -> frozenset[str]:
        """The inputs that the pipeline or its workers write: a reset deletes these topics, and the next run writes the records
        again.
        """
        return frozenset({*self.topology.fed, *(pipelines.found()[self.name].reports or ())})

    @cached_property
    def owner(self) -> Owner:
        """The identity of the pipeline on its cluster."""
        from onefold.processor.io import admin

        with said(self.client):
            return Owner(admin.cluster_id(admin.connect(self.client)), self.name)

    def _is_own(self, letter: Letter) -> bool:
        """Whether this pipeline wrote a dead letter. Pipelines that read the same input share its dead-letter topic."""
        return letter.signature is None or self.owner.signed(letter.signature)

    def receipts(self) -> Receipts | None:
        """Read the receipts. None: the topic of the receipts does not exist."""
        from onefold.processor.io import admin, kafka_errors, replays

        with said(self.client):
            kafka = admin.connect(self.client)
            if self.topology.replays not in admin.existing(kafka):
                kafka_errors.check_visible(kafka, [self.topology.replays])
                return None
            found = replays.Receipts(self.client, self.topology.replays)
            found.read_on()
            return found

    def receipt(self, source: RecordPlace | None, receipts: Receipts | None) -> ReplayReceipt | None:
        """The receipt for the record at this place. None: the dead letter is open."""
        if receipts is None or source is None:
            return None
        return receipts.of(source, self.topic_ids.get(source.topic, ""))

    def select(self, wanted: Wanted) -> Iterator[Letter]:
        """Read the selected dead letters, within a partition in the order of offsets."""
        from onefold.processor.io import admin, kafka_errors, range_reader

        topics = self._topics(wanted.topic)
        receipts = self.receipts() if wanted.open else None
        with said(self.client):
            kafka = admin.connect(self.client)
            there = admin.existing(kafka)
            if missing := [topic for topic in topics if topic not in there]:
                kafka_errors.check_visible(kafka, missing)
                raise UserError(Code.TOPIC_MISSING, f"Kafka has no topic {missing[0]}", "`onefold migrate` makes it.")
            ranges = {
                (topic, partition): (
                    admin.identity(kafka, topic, partition).start,
                    admin.stable_end(kafka, topic, partition),
                )
                for topic in topics
                for partition in range(there[topic])
            }
            for message in range_reader.between(self.client, ranges):
                letter = _letter(message)
                is_wanted = self._is_own(letter) and wanted.takes(letter, self._state_key)
                if is_wanted and self.receipt(letter.source, receipts) is None:
                    yield letter

    def one(self, at: RecordPlace) -> Letter:
        """The dead letter at a place, or the dead letter of the record there. Raises UserError if there is none."""
        from onefold.processor.io import range_reader

        if at.topic in self.topology.dead.values():
            with said(self.client):
                found = range_reader.fetch(self.client, [at])
            letters = [letter for letter in map(_letter, found.values()) if self._is_own(letter)]
        else:
            letters = list(self.select(Wanted(topic=at.topic, places=frozenset({at}))))
        if not letters:
            raise UserError(
                Code.DEAD_LETTER_MISSING,
                f"there is no dead letter at {at}, and none of a record there",
                exit_code=USAGE,
            )
        return letters[0]

    def again(self, letters: Iterable[Letter]) -> list[Letter]:
        """Read the same dead letters again, with key and value, without those that are gone meanwhile."""
        from onefold.processor.io import range_reader

        with said(self.client):
            return [
                _letter(message) for message in range_reader.fetch(self.client, [one.place for one in letters]).values()
            ]

    def originals(self, letters: Iterable[Letter]) -> dict[RecordPlace, Original | str]:
        """The rejected record of each dead letter by place, or one sentence: why the record is not available."""
        from onefold.processor.io import admin, range_reader

        letters = list(letters)
        with said(self.client):
            there = admin.existing(admin.connect(self.client))
            sources = [
                letter.source
                for letter in letters
                if letter.source is not None and letter.source.partition < there.get(letter.source.topic, 0)
            ]
            found = range_reader.fetch(self.client, sources)
            gone = {source for source in sources if source not in found}
            kafka = admin.connect(self.client)
            starts = {place: admin.identity(kafka, *place).start for place in {(one[0], one[1]) for one in gone}}
        removed = {source for source in gone if source.offset < starts[source.topic, source.partition]}
        return {
            letter.place: _original(letter, found.get(letter.source or letter.place), letter.source in removed)
            for letter in letters
        }

    def decoded(self, letter: Letter, value: bytes | None) -> tuple[Any, str]:
        """The value decoded with the present contract, and "" or the reason of the contract's refusal."""
        source = letter.source or letter.place
        try:
            return self.codec.decode(Record(source.topic, source.partition, source.offset, letter.key, value)), ""
        except (ProcessorError, KeyError) as error:
            return None, str(error)

    def plainly(self, letter: Letter, value: bytes | None) -> str:
        """The value as JSON, read without the rules of the contract: values that the contract refuses are included. "" if the
        value cannot be read.
        """
        source = letter.source or letter.place
        record = Record(source.topic, source.partition, source.offset, letter.key, value)
        try:
            return json.dumps(self.codec.read_plainly(record), ensure_ascii=False, default=str)
        except (ProcessorError, KeyError, ValueError, RecursionError):
            return ""

    def _state_key(self, letter: Letter) -> str | None:
        value, _ = self.decoded(letter, letter.value) if letter.whole else (None, "")
        topic = letter.source.topic if letter.source else ""
        if value is None or topic not in self.topology.keys:
            return None
        try:
            return str(self.topology.keys[topic](value))
        except Exception:  # noqa: BLE001 - the pipeline's own code, at a value that it refused
            return None

    def _topics(self, topic: str | None) -> list[str]:
        """The dead-letter topic of the given input, or all dead-letter topics."""
        dead = self.topology.dead
        if topic is None:
            return list(dead.values())
        if topic not in dead and topic not in dead.values():
            raise UserError(
                Code.PIPELINE_UNKNOWN, f"{topic} is no input of {self.name}", f"Inputs are: {', '.join(dead)}.", USAGE
            )
        return [dead.get(topic, topic)]


def of_place(at: RecordPlace, settings: Settings) -> DeadLetters:
    """The dead letters of the pipeline that reads the topic, or whose dead-letter topic it is. Raises UserError if there is
    none.
    """
    inputs: list[str] = []
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            topology = loading.load_topology(pipeline)
        except InvalidDeclaration:  # `check` reports the fault; the topic may belong to another pipeline
            continue
        inputs += topology.reads
        if at.topic in (*topology.reads, *topology.dead.values()):
            return DeadLetters(name, settings)
    raise UserError(
        Code.PIPELINE_UNKNOWN, f"{at.topic} is no input of a pipeline", f"Inputs are: {', '.join(inputs)}.", USAGE
    )


class said:  # noqa: N801 - read as a word: with said(client)
    """Convert errors of the processor's clients to UserError. `client`: the client or its settings, named in the sentence; {}:
    none.
    """

    def __init__(self, client: AdminClient | Mapping[str, Any]) -> None:
        self._client = client

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from confluent_kafka import KafkaException

        if isinstance(error, KafkaException):
            raise of_kafka(error, "a question to Kafka has failed", self._client) from None
        if isinstance(error, ProcessorError) and not isinstance(error, Rejected):
            raise of_processor(error) from None


def _letter(message: Message) -> Letter:
    headers = {name: bytes(value or b"") for name, value in _headers(message)}
    length = headers.get(written.LENGTH_HEADER, b"")
    value = message.value()
    return Letter(
        RecordPlace(message.topic() or "", message.partition() or 0, message.offset() or 0),
        RecordPlace.found(headers.get(SOURCE_HEADER, b"").decode(errors="replace")),
        message.timestamp()[1],
        headers.get(written.REASON_HEADER, b"").decode(errors="replace"),
        message.key(),
        value,
        headers.get(written.DIGEST_HEADER, b"").decode(errors="replace"),
        int(length) if length.isdigit() else len(value or b""),
        headers.get(PIPELINE_HEADER),
        Ticket.decode(headers.get(PARKED_HEADER)),
    )


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    """All headers. Values of type `str` occur only in the client's stub, never in messages."""
    found: Any = message.headers()
    return found or []


def _original(letter: Letter, message: Message | None, removed: bool) -> Original | str:
    """The rejected record of a dead letter, or one sentence.

    Args:
        message: the record at the source place now.
        removed: whether the partition now begins after the source place.
    """
    source = letter.source
    if source is None:
        return "its headers do not say where it came from"
    if message is not None:
        key, value = message.key(), message.value()
        same_key = (key if key is None else key[: written.VALUE_BYTES_MAX]) == letter.key
        if not same_key or hashlib.sha256(value or b"").hexdigest() != letter.sha256:
            return f"another record lies at {source} now: {source.topic} was made again since"
        return Original(key, value, cast("Envelope", message))
    if not removed:
        # Never the dead letter's copy: its receipt would withdraw the record that later takes this place in a recreated topic.
        return f"no record lies at {source}: compaction has removed it, or {source.topic} was made again since"
    if not letter.whole:
        lacks = (
            f"retention has removed {source}, and the dead letter holds only the first "
            f"{len(letter.value or b''):,} of its {letter.length:,} bytes"
        )
        return Original(letter.key, letter.value, None, lacks, is_cut=True)
    return Original(letter.key, letter.value, None, "retention has removed the source, and with it headers and time")


def _text(key: bytes | None) -> str | None:
    return key.decode(errors="replace") if key is not None else None
