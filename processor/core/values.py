"""The values that travel through a fold: what came in, what a handler asks for, and the transaction that holds it all.

They are tuples: immutable, printed well, and cheap to make. The three that are made several times for every record are
plain tuples with a name for the type checker only: a NamedTuple costs 0.2 microseconds, and at 60,000 records a second a
dozen of them would be a tenth of a core.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

#: Names of headers that begin so are the processor's own.
OWN_HEADERS = "onefold-"
#: Header of every record that the processor writes: `topic/partition/offset` of the input record that caused it.
SOURCE_HEADER = "onefold-source"
#: Header of a repartitioned copy: the timestamp of the original, in milliseconds since 1970, as decimal digits.
TIMESTAMP_HEADER = "onefold-timestamp"
#: Header of a record that was put back: `topic/partition/offset` of where it lay first.
REPLAYS_HEADER = "onefold-replays"
#: Header of a dead letter of a parked key, and of its replay: the turn of its record (see `core.parking`).
PARKED_HEADER = "onefold-parked"
#: Header of a record in an input that has no event: the dead letter with this turn was dropped.
DROPPED_HEADER = "onefold-dropped"
#: Header by which tracing systems know an event in every program (W3C Trace Context); another one has what they add to it.
TRACE_HEADER = "traceparent"
_TRACE_HEADERS = frozenset((TRACE_HEADER, "tracestate"))
# What the standard wants to be passed on. Any sender may set longer ones, and an output has to fit where its input did.
_TRACE_BYTES_MAX = 512

#: Headers of a record: name and value each, in order; a name may come more than once.
Headers = Sequence[tuple[str, bytes | None]]


class Envelope(Protocol):
    """What a record carries besides its key and value. A message of the Kafka client is one, kept as it is: what nobody asks
    for is never taken out of it (docs/decisions/repartitioned-records.md).
    """

    def timestamp(self) -> tuple[int, int]:
        """Whose clock it was, and the milliseconds since 1970."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """All of them, the processor's own included."""


class Record(NamedTuple):
    """Bytes in a partition of an input topic, as they were read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    envelope: Envelope | None = None

    def __hash__(self) -> int:
        return hash(self[:3])

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970: when the record was sent or appended. A repartitioned copy has that of its original."""
        return _timestamp_ms(self.envelope)

    @property
    def headers(self) -> Headers:
        """Those that the sender set, in order."""
        return _headers(self.envelope)

    @property
    def source(self) -> bytes:
        """Where the record lies, as the source header spells it."""
        return source_template(self.topic, self.partition) % self.offset


def source_template(topic: str, partition: int) -> bytes:
    """What an offset is put into with `%` to get the source header of a record."""
    return b"%b/%d/%%d" % (topic.encode(), partition)


# Of a time in milliseconds; any sender may set the header, and `int` refuses what is longer than some thousands.
_TIME_DIGITS_MAX = 15


def _timestamp_ms(envelope: Envelope | None) -> int:
    if envelope is None:
        return 0
    kept = [value for name, value in envelope.headers() or () if name == TIMESTAMP_HEADER]
    digits = (kept[-1] or b"") if kept else b""
    return int(digits) if digits.isdigit() and len(digits) <= _TIME_DIGITS_MAX else envelope.timestamp()[1]


def _headers(envelope: Envelope | None) -> Headers:
    found = () if envelope is None else envelope.headers() or ()
    return [header for header in found if not header[0].startswith(OWN_HEADERS)]


def trace_of(record: Record) -> list[tuple[str, bytes | None]]:
    """The headers by which the record is traced, which all that is made of it carries on."""
    found = None if record.envelope is None else record.envelope.headers()
    if not found:
        return []
    return [
        (name, value) for name, value in found if name in _TRACE_HEADERS and value and len(value) <= _TRACE_BYTES_MAX
    ]


class Event(NamedTuple):
    """A decoded input record, as a handler sees it.

    Attributes:
        topic, partition, offset: where the record lies. Of one partition of one topic the offsets go up; see `Topology`.
        value: by the topic's schema; its fields are attributes named as there. None for a tombstone, which only a topology
            with tombstones="event" is given.
        envelope: what `timestamp_ms` and `headers` are taken from, when they are asked for.
        key: the record's Kafka key; None when it has none. That of a tombstone is the state key's text, as UTF-8. That of a
            record which was repartitioned is the state key's text, too, whatever its sender gave it.
    """

    topic: str
    partition: int
    offset: int
    value: Any
    envelope: Envelope | None = None
    key: bytes | None = None

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp as Kafka keeps it, in milliseconds since 1970: when it was sent, or appended where the topic
        says so. It is the same in every replay. 0 when the event was made by hand, without an envelope.
        """
        return _timestamp_ms(self.envelope)

    @property
    def headers(self) -> Headers:
        """The record's headers, (name, bytes or None) each, in order; those of the processor's own are not among them."""
        return _headers(self.envelope)


#: The fields of an output: a dict, or else an object that has all of them as attributes, such as a msgspec Struct.
Fields = Any


class Output(NamedTuple):
    """A record that a handler asks for. A plain `(topic, fields)` means the same as `Output(topic, fields)`, and is made in a
    tenth of the time.

    Attributes:
        topic: one of the topology's outputs.
        fields: those of the topic's schema, in a dict, or in an object that has all of them as attributes.
        key: the record's key, which decides its partition: an int or text; None is the state key. Where a topic has row
            fields a row belongs under one key for ever: of records under two keys nobody can say which is the later one.
        headers: (name, bytes or None) each. Names that begin with `onefold-` are the processor's.
    """

    topic: str
    fields: Fields
    key: str | int | None = None
    headers: Headers = ()


#: What a handler returns as its outputs: any number of `Output`s and plain `(topic, fields)`, in any mixture.
Outputs = Sequence[Output | tuple[str, Fields]]

#: An output on its way: topic, key, fields, the input record that caused it (its source header), and further headers.
Produced = tuple[str, str, Fields, Record, Headers]

#: The new state of a key (None: forget the key), and the last input record that changed it.
Change = tuple[Any, Record]


class Misrouted(NamedTuple):
    """An input record that lies in a partition that is not that of its key, and the partition that is."""

    record: Record
    key: str
    partition: int


class DeadLetter(NamedTuple):
    """An input record set aside, with the one sentence that says why. `parked`: the value of `PARKED_HEADER`; None: the record
    has no turn.
    """

    record: Record
    reason: str
    parked: bytes | None = None


class Counts(NamedTuple):
    """How many input records ended how. Kept with the progress, so the numbers are as exact as the state."""

    accepted: int = 0
    ignored: int = 0
    repartitioned: int = 0
    dead: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """The sums, field by field."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def since(self, before: "Counts") -> "Counts":
        """The differences, field by field."""
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


class Transaction(NamedTuple):
    """All that one Kafka transaction will contain, computed before any of it is done.

    `offsets_next` is the progress: per topic the offset to read next. `changes` holds one entry a key,
    however often the key changed; so do `outputs` for topics where the latest row wins. `ticked_ms` is the time of the last
    tick that was folded, in this transaction or before it.
    """

    outputs: list[Produced]
    changes: dict[str, Change]
    misrouted: list[Misrouted]
    dead_letters: list[DeadLetter]
    offsets_next: dict[str, int]
    counts: Counts
    ticked_ms: int = 0
