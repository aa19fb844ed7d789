"""The values that travel through a fold: what came in, what a handler asks for, and the transaction that holds it all.

They are tuples: immutable, printed well, and cheap to make. The three that are made several times for every record are
plain tuples with a name for the type checker only: a NamedTuple costs 0.2 microseconds, and at 60,000 records a second a
dozen of them would be a tenth of a core.
"""

from typing import Any, NamedTuple

#: Header of every record that the processor writes: `topic/partition/offset` of the input record that caused it.
SOURCE_HEADER = "onefold-source"


class Record(NamedTuple):
    """Bytes in a partition of an input topic, as they were read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def source(self) -> bytes:
        """Where the record lies, as the source header spells it."""
        return source_template(self.topic, self.partition) % self.offset


def source_template(topic: str, partition: int) -> bytes:
    """What an offset is put into with `%` to get the source header of a record."""
    return b"%b/%d/%%d" % (topic.encode(), partition)


class Event(NamedTuple):
    """A decoded input record, as a handler sees it: the value's fields are attributes named as in the contract."""

    topic: str
    partition: int
    offset: int
    value: Any


#: The fields of an output: a dict, or else an object that has all of them as attributes, such as a msgspec Struct.
Fields = Any

#: A record that a handler asks for: the topic, and the fields of that topic's contract. It is keyed by the state key.
Output = tuple[str, Fields]

#: An output on its way: topic, key, fields, and the input record that caused it, which becomes its source header.
Produced = tuple[str, str, Fields, Record]

#: The new state of a key (None: forget the key), and the last input record that changed it.
Change = tuple[Any, Record]


class Forward(NamedTuple):
    """An input record that lies in a partition that is not its key's home, and the partition that is."""

    record: Record
    key: str
    home: int


class DeadLetter(NamedTuple):
    """An input record set aside, with the one sentence that says why."""

    record: Record
    reason: str


class Counts(NamedTuple):
    """How many input records ended how. Kept with the progress, so the numbers are as exact as the state."""

    accepted: int = 0
    ignored: int = 0
    forwarded: int = 0
    dead: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """The sums, field by field."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Transaction(NamedTuple):
    """All that one Kafka transaction will contain, computed before any of it is done.

    `offsets_next` is the progress: per input topic the offset to read next. `changes` holds one entry a key,
    however often the key changed; so do `outputs` for topics where the latest row wins.
    """

    outputs: list[Produced]
    changes: dict[str, Change]
    forwards: list[Forward]
    dead_letters: list[DeadLetter]
    offsets_next: dict[str, int]
    counts: Counts
