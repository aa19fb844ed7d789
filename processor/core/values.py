"""The values of a fold: input records, the outputs of a handler, and the transaction as a whole.

The values are tuples, which are immutable and cheap. The three values that a fold makes several times for each record are
plain tuples with a type alias, since a NamedTuple takes longer to create.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

#: Prefix of the processor's own headers.
OWN_HEADERS = "onefold-"
#: Header of every record that the processor writes: `topic/partition/offset` of the input record that caused it.
SOURCE_HEADER = "onefold-source"
#: Header of a repartitioned copy: the timestamp of the original, in milliseconds since 1970, as decimal digits.
TIMESTAMP_HEADER = "onefold-timestamp"
#: Header of a replayed record: `topic/partition/offset` of its first place.
REPLAYS_HEADER = "onefold-replays"
#: Header of a parked key's dead letter, and of its replay: the record's turn (see `core.parking`).
PARKED_HEADER = "onefold-parked"
#: Header of an input record without an event: the dead letter with this turn was dropped.
DROPPED_HEADER = "onefold-dropped"
#: Header by which tracing systems identify an event across programs (W3C Trace Context). `tracestate` has their additions.
TRACE_HEADER = "traceparent"
_TRACE_HEADERS = frozenset((TRACE_HEADER, "tracestate"))
# The length that the standard requires to be propagated. A longer header might make an output larger than its input.
_TRACE_BYTES_MAX = 512

#: Headers of a record: (name, value) pairs, in order. A name may occur more than once.
Headers = Sequence[tuple[str, bytes | None]]


class Envelope(Protocol):
    """The parts of a record besides key and value. A message of the Kafka client serves as the envelope, so
    that unused parts are never extracted (docs/decisions/repartitioned-records.md).
    """

    def timestamp(self) -> tuple[int, int]:
        """The type of the timestamp (whose clock), and the milliseconds since 1970."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """All headers, including the processor's own."""


class Record(NamedTuple):
    """A record of an input topic, as bytes."""

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
        """When the record was sent or appended, in milliseconds since 1970. A repartitioned copy has the original's time."""
        return _timestamp_ms(self.envelope)

    @property
    def headers(self) -> Headers:
        """The sender's headers, in order, without the processor's own."""
        return _headers(self.envelope)

    @property
    def source(self) -> bytes:
        """The record's place in the format of the source header."""
        return source_template(self.topic, self.partition) % self.offset


def source_template(topic: str, partition: int) -> bytes:
    """Return a format for the source headers of a partition: `template % offset` is the header's value."""
    return b"%b/%d/%%d" % (topic.encode(), partition)


# Enough for a time in milliseconds. Any sender may set the header, and `int` raises for thousands of digits.
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
    """Return the trace headers of a record, for the records made from it."""
    found = None if record.envelope is None else record.envelope.headers()
    if not found:
        return []
    return [
        (name, value) for name, value in found if name in _TRACE_HEADERS and value and len(value) <= _TRACE_BYTES_MAX
    ]


class Event(NamedTuple):
    """A decoded input record for a handler.

    Attributes:
        topic, partition, offset: the record's place. Offsets increase within one partition of one topic; see `Topology`.
        value: an object with the fields of the topic's schema as attributes. None for a tombstone, which only a topology
            with tombstones="event" passes to its handler.
        envelope: the source of `timestamp_ms` and `headers`, read on demand.
        key: the record's Kafka key; None if the record has no key. For a tombstone, the key is the state key as UTF-8 text. A
            repartitioned record also has the state key here, whatever key the sender set.
    """

    topic: str
    partition: int
    offset: int
    value: Any
    envelope: Envelope | None = None
    key: bytes | None = None

    @property
    def timestamp_ms(self) -> int:
        """The record's Kafka timestamp in milliseconds since 1970: the time of sending, or of appending if the topic is
        configured so. The timestamp is the same in every replay. 0 for an event made without an envelope.
        """
        return _timestamp_ms(self.envelope)

    @property
    def headers(self) -> Headers:
        """The sender's headers as (name, bytes or None) pairs, in order, without the processor's own."""
        return _headers(self.envelope)


#: The fields of an output: a dict, or an object with an attribute for each field, such as a msgspec Struct.
Fields = Any


class Output(NamedTuple):
    """A record that a handler writes. A plain `(topic, fields)` means the same as `Output(topic, fields)`, and is faster to
    create.

    Attributes:
        topic: one of the topology's outputs.
        fields: the fields of the topic's schema, in a dict, or in an object with an attribute for each field.
        key: the record's key, which decides its partition: an int or text; None means the state key. In a topic with row
            fields, a row must keep the same key for ever: under two keys, the order of the row's records is unknown.
        headers: (name, bytes or None) pairs. Names that begin with `onefold-` are reserved for the processor.
    """

    topic: str
    fields: Fields
    key: str | int | None = None
    headers: Headers = ()


#: The outputs of a handler: any mixture of `Output`s and plain `(topic, fields)`.
Outputs = Sequence[Output | tuple[str, Fields]]

#: An output with its cause: topic, key, fields, the input record named in the source header, and further headers.
Produced = tuple[str, str, Fields, Record, Headers]

#: The new state of a key (None: forget the key), and the last input record that changed the state.
Change = tuple[Any, Record]


class Misrouted(NamedTuple):
    """An input record on another partition than that of its state key, and the partition of the key."""

    record: Record
    key: str
    partition: int


class DeadLetter(NamedTuple):
    """An input record for the dead-letter topic, with the reason as one sentence. `parked`: the value of
    `PARKED_HEADER`; None: the record has no turn.
    """

    record: Record
    reason: str
    parked: bytes | None = None


class RecordCounts(NamedTuple):
    """The number of input records by result. The progress record holds the counts, so they are as exact as the state."""

    accepted: int = 0
    ignored: int = 0
    repartitioned: int = 0
    dead: int = 0

    def plus(self, other: "RecordCounts") -> "RecordCounts":
        """Return the sums, field by field."""
        return RecordCounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def since(self, before: "RecordCounts") -> "RecordCounts":
        """Return the differences, field by field."""
        return RecordCounts(*(now - then for now, then in zip(self, before, strict=True)))


class Transaction(NamedTuple):
    """The whole content of one Kafka transaction, computed before any part is written.

    `offsets_next` is the progress: per topic the offset to read next. `changes` has one entry per key, however often the
    key changed. `outputs` has one entry per row for topics with row fields. `ticked_ms` is the time of the last tick
    folded, in this transaction or earlier.
    """

    outputs: list[Produced]
    changes: dict[str, Change]
    misrouted: list[Misrouted]
    dead_letters: list[DeadLetter]
    offsets_next: dict[str, int]
    counts: RecordCounts
    ticked_ms: int = 0
