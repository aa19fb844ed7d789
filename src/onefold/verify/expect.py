"""Compute from the input records, one by one, which rows, dead letters and repartitioned copies must exist.

A record of an input topic has exactly one fate:

- accepted: changed rows of its key, or caused a record in a feedback topic
- ignored: well-formed, but without a change (a duplicate, a late record)
- repartitioned: well-formed, but in the wrong partition; only its copy in the right partition is processed
- dead: inadmissible, by the schema or by a rule of the pipeline; or of a parked key (see `parks`)

An input record with a null value is a tombstone. By the setting of the workload, a tombstone is a dead letter, is ignored, or
deletes a key in the model; the Kafka key is the text of the state key.

A tick is a record of the topic `<pipeline>.ticks`. All fates except `repartitioned` are possible. A tick is ignored unless its
time is later than the last tick of its partition that was not dead. Its time must agree with the record's timestamp in Kafka.

The copy of a repartitioned record is a record of the same input topic, in the partition of its key. Its Kafka key is the text
of the state key, and its value is the same. Headers name the original, its timestamp and the pipeline (see `writer_identity`).
Exactly one copy must exist, with a fate of its own.

Memory grows with the rows, the dead letters, the repartitioned records still without a copy, and the unsigned copies of old
releases. Each input record takes one byte, for its fate.
"""

import functools
import hashlib
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from onefold.error_codes import Code
from onefold.verify.column_types import kind_of
from onefold.verify.contracts import contract_of, contracts
from onefold.verify.decode import Inadmissible, Registry, decode, decode_output
from onefold.verify.derived_tables import Gathered, Sums
from onefold.verify.feedback import Fed
from onefold.verify.models import DeletingModel, Feeding, RowModel, TickingModel
from onefold.verify.outcomes import Fate, FateCounts
from onefold.verify.parks import Parks, ParkTicket, is_drop
from onefold.verify.partitioner import partition_of
from onefold.verify.record import ReadRecord, Source, source_of
from onefold.verify.verdict import CannotTell, Finding
from onefold.verify.writer_identity import COPY_HEADER, SOURCE_HEADER, WriterIdentity

#: The value of a tick, in every pipeline: the time, in milliseconds since 1970.
TICK = contract_of(
    {"type": "record", "name": "Tick", "namespace": "onefold", "fields": [{"name": "at_ms", "type": "long"}]}
)
#: The last millisecond of the year 9999, the limit for ticks.
TICK_MS_MAX = 253_402_300_799_999
# The limits for a tick's time relative to its timestamp in Kafka. Brokers by default refuse a timestamp an hour ahead of their
# clock (message.timestamp.after.max.ms). A tick has the time at the start of its interval, and the longest interval is a day.
_AHEAD_MS_MAX = 3_600_000
_BEHIND_MS_MAX = _AHEAD_MS_MAX + 86_400_000
#: The maximum size of the original value, and of the key, in a dead letter.
DEAD_LETTER_BYTES_MAX = 65_536


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        kind: a key of `column_types.KINDS`; empty: the type of the field with this name in the schema.
        generated: whether PostgreSQL computes the column.
    """

    name: str
    kind: str = ""
    generated: bool = False


@dataclass(frozen=True)
class Table:
    """A table, its output topic, and its columns.

    Attributes:
        only: the columns, if different from the fields of the topic's schema.
        but: columns that replace the columns of the same name, or follow the rest.
        summed: each row comes from several records of the topic, and no single record has made any row. A row with sums of zero
            may exist or not.
        sums: the rule for the rows of a `summed` table, necessary for the continuous verifier.
        adds: columns whose values in an output record are increments.
        kafka_key: the field with the Kafka key of an output record, or a function of the fields, if the handler sets
            `Output(key=...)`; "": the state key of the input record.
    """

    name: str
    topic: str
    key: tuple[str, ...]
    only: tuple[Column, ...] = ()
    but: tuple[Column, ...] = ()
    summed: bool = False
    sums: Sums | Gathered | None = None
    adds: tuple[str, ...] = ()
    kafka_key: str | Callable[[dict[str, Any]], int | str] = ""

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns, each with its type. Raises `CannotTell` if the schema has no field, or only a nested one, for a column
        without a type.
        """
        fields = contracts()[self.topic].fields
        named = {column.name: column for column in self.only or map(Column, fields)}
        named |= {column.name: column for column in self.but}
        if missing := {column.name for column in named.values() if not column.kind} - fields.keys():
            raise CannotTell(
                Code.MODEL_WRONG,
                f"the schema of {self.topic} has no field {min(missing)!r}, and its model gives no kind",
            )
        kinds = {name: column.kind or kind_of(fields[name]["type"]) for name, column in named.items()}
        return tuple(replace(column, kind=kinds[name]) for name, column in named.items())


@dataclass(frozen=True)
class View:
    """A view that must show the content of a table, under these names."""

    name: str
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """A pipeline from the viewpoint of the verifier.

    Attributes:
        fed: the feedback topics, inputs written by the pipeline itself; they require a `Feeding` model.
        ticks: whether the processors write ticks; if so, the model has a method `tick` (see `TickingModel`).
        made: whether workers make objects, which are also verified; if so, the model is `Making`.
        queues: the outputs for workers, without a table; they require a `Feeding` model.
        tombstones: the handling of an input record with a null value: "reject" as a dead letter; "ignore"; or "event" for the
            model's `delete` (see `DeletingModel`).
        on_dead_letter: the handling of later events of a key after a rejected one: "pass" to the model, or "park" as dead
            letters.
        not_judged: everything not compared, each with the reason: output topics and tables without a table in the model, and
            fields and columns as `topic.field` and `table.column`.
        apart: without effect; accepted with a warning, for models of earlier versions.
    """

    name: str
    inputs: tuple[str, ...]
    tables: tuple[Table, ...]
    model: Callable[[], RowModel]
    views: tuple[View, ...] = ()
    fed: tuple[str, ...] = ()
    ticks: bool = False
    made: bool = False
    queues: tuple[str, ...] = ()
    apart: InitVar[bool] = False
    tombstones: str = "reject"
    not_judged: Mapping[str, str] = field(default_factory=dict, hash=False)
    on_dead_letter: str = "pass"

    def __post_init__(self, apart: bool) -> None:
        if apart:
            text = f"the verification model of {self.name} says apart=True, which has no effect: remove it"
            warnings.warn(text, FutureWarning, stacklevel=3)
        if self.tombstones not in ("reject", "ignore", "event"):
            raise ValueError(
                f"the verification model of {self.name} has tombstones={self.tombstones!r}: say reject, ignore or event"
            )

        if self.on_dead_letter not in ("pass", "park"):
            raise ValueError(
                f"the verification model of {self.name} has on_dead_letter={self.on_dead_letter!r}: say pass or park"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """All topics with records that change rows: the inputs, and the ticks."""
        return (*self.inputs, f"{self.name}.ticks") if self.ticks else self.inputs

    @property
    def outputs(self) -> dict[str, Table]:
        """By output topic, the table with a row for each key of its records."""
        return {table.topic: table for table in self.tables if not table.summed}

    @property
    def mentioned(self) -> set[str]:
        """The output topics, tables and views that are compared."""
        names = {*(table.name for table in self.tables), *(view.name for view in self.views)}
        return names | {*self.outputs, *self.queues, *self.fed}

    def unmentioned(self, written: Iterable[str], fields: Mapping[str, Iterable[str]]) -> Iterator[str]:
        """Yield the output topics not compared, and the fields not compared in the remaining topics, as `topic.field`.

        Args:
            written: the pipeline's outputs.
            fields: by output, the fields of its records.
        """
        yield from sorted({*written} - self.mentioned)
        for topic in self.outputs:
            tables = [table for table in self.tables if table.topic == topic]
            if all(table.only for table in tables):
                compared = {column.name for table in tables for column in (*table.only, *table.but)}
                yield from (f"{topic}.{name}" for name in fields.get(topic, ()) if name not in compared)


class ExpectedDeadLetter(NamedTuple):
    """The expected dead letter of an input record. `parked`: the expected ticket; None: no ticket."""

    reason: str
    key: bytes | None
    head: bytes | None
    sha256: str
    length: int
    parked: str | None = None

    def is_cut(self) -> bool:
        """Return whether the dead letter may hold less than the record's key and value."""
        return self.length > len(self.head or b"") or len(self.key or b"") >= DEAD_LETTER_BYTES_MAX


class Copy(NamedTuple):
    """The copy of a repartitioned record: the right partition, the Kafka key there, and a digest of the value."""

    partition: int
    key: bytes
    digest: bytes


class Sent(NamedTuple):
    """The sender's timestamp of a record in milliseconds since 1970 (None: unknown), and the sender's headers."""

    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, record: ReadRecord) -> "Sent":
        """Return the timestamp and headers of a record, which must be as its sender gave them."""
        return cls(record.timestamp_ms, tuple(record.headers))

    def differing(self, other: "Sent") -> dict[str, tuple[Any, Any]]:
        """Return the differences of `other`, by name: the expected and the found value."""
        wrong: dict[str, tuple[Any, Any]] = {}
        if self.timestamp_ms != other.timestamp_ms and self.timestamp_ms is not None:
            wrong[COPY_HEADER] = self.timestamp_ms, other.timestamp_ms
        if self.headers != other.headers:
            wrong["headers"] = list(self.headers), list(other.headers)
        return wrong


class UnsentCopy(NamedTuple):
    """A copy without a matching original so far. `sent`: timestamp and headers of the original; None: a copy of an old release,
    without them.
    """

    lies_at: Source
    original: Source
    copy: Copy
    sent: Sent | None


@dataclass
class Expected:
    """The records and rows that must exist.

    Attributes:
        uncopied: repartitioned records still without a copy.
        unsent: signed copies still without an original.
        unsigned: the same without a signature: copies of an old release, or records of any program.
        copied: the matched unsigned copies.
        changed: mismatches of copies with the timestamps or headers of their originals.
        fed: expected and found records in feedback topics and queues.
        mistimed: ticks in contradiction to their timestamp in Kafka.
    """

    model: RowModel
    counts: FateCounts = field(default_factory=FateCounts)
    dead: dict[Source, ExpectedDeadLetter] = field(default_factory=dict)
    uncopied: dict[Source, tuple[Copy, Sent]] = field(default_factory=dict)
    unsent: list[UnsentCopy] = field(default_factory=list)
    unsigned: list[UnsentCopy] = field(default_factory=list)
    copied: set[tuple[Source, Copy]] = field(default_factory=set)
    changed: list[Finding] = field(default_factory=list)
    fates: dict[tuple[str, int], bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    fed: Fed = field(default_factory=Fed)
    mistimed: list[Finding] = field(default_factory=list)

    def doubled(self) -> list[tuple[Source, Source]]:
        """Return the copies without an original, each with the original it names. An unsigned record counts as a second copy
        only if the same copy was matched before.
        """
        again = [one for one in self.unsigned if one[1:3] in self.copied]
        return [(one.lies_at, one.original) for one in (*self.unsent, *again)]

    def is_copied(self, one: UnsentCopy, *, signed: bool) -> bool:
        """Match a copy with an original that waits for the copy. Return whether there is one."""
        wanted, sent = self.uncopied.get(one.original, (None, None))
        if wanted != one.copy:
            return False
        del self.uncopied[one.original]
        if not signed:
            self.copied.add((one.original, one.copy))
        if sent is not None and one.sent is not None and (wrong := sent.differing(one.sent)):
            text = "the copy of a repartitioned record has the time and the headers of its original"
            lies_at, original = str(one.lies_at), str(one.original)
            self.changed.append(Finding("wrong output", one.lies_at.topic, {}, wrong, lies_at, original, text))
        return True

    def fate(self, source: Source) -> int:
        """Return the fate of an input record; `Fate.NONE` if no record was read there."""
        fates = self.fates.get(source[:2], b"")
        return fates[source.offset] if 0 <= source.offset < len(fates) else Fate.NONE


class Oracle:
    """Reads the input log and computes the expected rows and records. Records of one partition come in the order of their
    offsets.

    Args:
        partitions: of each input.
        queues: by queue, the number of its partitions, if different.
    """

    def __init__(
        self,
        workload: Workload,
        partitions: int,
        registry: Registry | None = None,
        owner: WriterIdentity | None = None,
        queues: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._workload = workload
        #: The pipeline on its cluster.
        self.owner = owner or WriterIdentity("", workload.name)
        #: Returns whether a record no longer counts in its place, as a dead letter that was replayed or dropped.
        self.withdrawn: Callable[[ReadRecord, Source], bool] = lambda record, source: False
        #: Returns the ticket in the dead letter of a withdrawn record, since the last reset; None: no ticket.
        self.parked: Callable[[Source], ParkTicket | None] = _no_turn
        self._parks = Parks() if workload.on_dead_letter == "park" else None
        #: Called after each input record taken by the model: its place, its state key (None: a tick), and its fate.
        self.changed: Callable[[Source, str | None, int], None] = _nothing
        self._partitions = partitions
        self._registry = registry
        named = (*workload.inputs, *workload.queues)
        self._contracts = {topic: contracts(workload.name)[topic] for topic in named}
        self._partitions_by_key: dict[str, int] = {}
        #: The state key of the last well-formed record, without ticks.
        self.key = ""
        self._ticks = f"{workload.name}.ticks" if workload.ticks else None
        # By partition, the time of the last tick.
        self._ticked: dict[int, int] = {}
        self.expected = Expected(
            workload.model(), fed=Fed({topic: queues.get(topic, partitions) for topic in workload.queues})
        )

    def feed(self, record: ReadRecord) -> int:
        """Take an input record, or a tick. Return its fate."""
        source = Source(record.topic, record.partition, record.offset)
        original = source_of(self.owner.copied(record)) if record.headers else None
        is_copy = original is not None and record.header(COPY_HEADER) is not None
        fed = record.topic in self._workload.fed and not is_copy
        if original is not None and not fed:
            self._match_copy(record, source, original)
        try:
            withdrawn = self.withdrawn(record, source)
            fate = self._judge(record, source, fed, withdrawn)
        except Inadmissible as reason:
            parked = None if self._parks is None else self._park(self._parks, record, source, withdrawn)
            self.expected.dead[source] = _dead_letter(record, str(reason), parked)
            fate = Fate.DEAD
        self._note(source, fate)
        return fate

    def take_job(self, record: ReadRecord) -> None:
        """Take a record of a queue, in any order. A copy or replay by a pipeline that reads the queue is no job."""
        if self.owner.wrote(record) is not None:
            return
        lies_at = f"{record.topic}/{record.partition}/{record.offset}"
        try:
            fields = decode_output(self._contracts[record.topic], record.value)
        except Inadmissible as reason:
            self.expected.fed.unreadable(record.topic, lies_at, str(reason))
        else:
            written = source_of(record.header(SOURCE_HEADER))
            key = (record.key or b"").decode(errors="backslashreplace")
            self.expected.fed.take(record.topic, lies_at, fields, written, key)

    def settled(self) -> Expected:
        """Return the expected rows and records after the input so far. More records may follow."""
        expected = self.expected
        expected.model.settle()
        match_late_originals(expected)
        return expected

    def _judge(self, record: ReadRecord, source: Source, fed: bool, withdrawn: bool) -> int:
        if record.topic == self._ticks:
            if withdrawn:
                raise Inadmissible(_WITHDRAWN)
            return self._judge_tick(record, source)
        ticket = self.owner.ticket(record) if self._parks is not None and record.headers else None
        if ticket is not None and is_drop(record) and not withdrawn:
            return self._drop(ticket)
        deletes = record.value is None and self._workload.tombstones != "reject"
        value = {} if deletes else decode(self._contracts[record.topic], record.value, self._registry)
        if fed and not deletes:  # pipelines never write null
            self.expected.fed.take(record.topic, str(source), value, source_of(record.header(SOURCE_HEADER)))
        if withdrawn:
            raise Inadmissible(_WITHDRAWN)
        if deletes and self._workload.tombstones == "ignore":
            return Fate.IGNORED
        model = self.expected.model
        self.key = key = _deleted(record) if deletes else model.key(value, source)
        belongs = self._partitions_by_key.get(key)
        if belongs is None:
            belongs = self._partitions_by_key[key] = partition_of(key, self._partitions)
        if belongs != record.partition:
            copy = Copy(belongs, key.encode(), _digest(record.value))
            self.expected.uncopied[source] = copy, Sent.of(self.owner.as_sent(record))
            return Fate.REPARTITIONED
        waits = self._parks is not None and self._parks.is_parked(key)
        if waits and self._parks is not None and not self._parks.is_next(key, ticket):
            raise Inadmissible("its key is parked")
        if hasattr(model, "record"):
            model.record = self.owner.as_sent(record)
        changed = self._delete(key, source) if deletes else model.apply(value, source)
        if waits and self._parks is not None:
            self._parks.call_next(key)
        self.changed(source, key, Fate.ACCEPTED if changed else Fate.IGNORED)
        if not changed:
            return Fate.IGNORED
        if self._workload.fed or self._workload.queues:
            for topic, fields, *named in cast("Feeding", model).feeds():
                self.expected.fed.ask(topic, fields, source, named[0] if named else key)
        return Fate.ACCEPTED

    def _drop(self, ticket: ParkTicket) -> int:
        parks, key = self._parks, ticket.key
        assert parks is not None, "only parked keys have tickets"
        if parks.is_parked(key):
            if not parks.is_next(key, ticket):
                raise Inadmissible("its key is parked")
            parks.call_next(key)
        return Fate.IGNORED

    def _park(self, parks: Parks, record: ReadRecord, source: Source, withdrawn: bool) -> ParkTicket | None:
        """Return the ticket of a dead letter's record. None: its key is unknown, or it was withdrawn before the last reset."""
        if record.topic == self._ticks:
            return None
        ticket = self.owner.ticket(record) if record.headers else None
        key = ticket.key if ticket is not None else None
        if key is None:
            told = self.parked(source) if withdrawn else None
            if withdrawn and told is None:
                return None
            key = self._key_of(record, source) or (told.key if told is not None else None)
        return None if key is None else parks.letter(key, source, ticket)

    def _key_of(self, record: ReadRecord, source: Source) -> str | None:
        try:
            if record.value is None and self._workload.tombstones == "event":
                return _deleted(record)
            value = decode(self._contracts[record.topic], record.value, self._registry)
            return self.expected.model.key(value, source)
        except Inadmissible:
            return None

    def _judge_tick(self, record: ReadRecord, source: Source) -> int:
        at_ms = decode(TICK, record.value, self._registry)["at_ms"]
        if not 0 <= at_ms <= TICK_MS_MAX:
            raise Inadmissible(f"{at_ms} is no time")
        kafka_ms = record.timestamp_ms
        if kafka_ms is not None and not -_BEHIND_MS_MAX <= at_ms - kafka_ms <= _AHEAD_MS_MAX:
            text = f"the tick says {at_ms} ms since 1970, and Kafka's time of the record is {kafka_ms}"
            self.expected.mistimed.append(Finding("wrong time", record.topic, source=str(source), text=text))
        if at_ms <= self._ticked.get(record.partition, 0):
            return Fate.IGNORED
        model = self.expected.model
        if not hasattr(model, "tick"):
            raise CannotTell(
                Code.MODEL_WRONG,
                f"the verification model of {self._workload.name} says that it has ticks, and has no function tick",
            )
        fate = Fate.ACCEPTED if cast(TickingModel, model).tick(at_ms, source) else Fate.IGNORED
        self.changed(source, None, fate)
        self._ticked[record.partition] = at_ms
        return fate

    def _delete(self, key: str, source: Source) -> bool:
        model = self.expected.model
        if not hasattr(model, "delete"):
            raise CannotTell(
                Code.MODEL_WRONG,
                f"the verification model of {self._workload.name} says that tombstones are events, and has no function delete",
            )
        return cast(DeletingModel, model).delete(key, source)

    def _match_copy(self, record: ReadRecord, lies_at: Source, original: Source) -> None:
        """Match a copy with its original, or note the copy for `settled`: partitions are read side by side, so the copy may
        come first.
        """
        # Copies of releases without signatures may also lack a timestamp.
        expected, copy = self.expected, Copy(record.partition, record.key or b"", _digest(record.value))
        copies = expected.unsent if self.owner.wrote(record) else expected.unsigned
        said = record.header(COPY_HEADER)
        sent = None if said is None else Sent.of(self.owner.as_sent(record))
        if sent is not None and said is not None and _ANY_TIME.fullmatch(said):
            sent = sent._replace(timestamp_ms=int(said))  # even a number too long for a time
        one = UnsentCopy(lies_at, original, copy, sent)
        if not expected.is_copied(one, signed=copies is expected.unsent):
            copies.append(one)

    def _note(self, source: Source, fate: int) -> None:
        fates = self.expected.fates[source[:2]]
        if len(fates) < source.offset:
            fates.extend(bytes(source.offset - len(fates)))
        fates.append(fate)
        self.expected.counts.count(fate)


_WITHDRAWN = "the record was replayed or dropped, and does not count where it lies"
# A record's timestamp in Kafka has 64 bits.
_ANY_TIME = re.compile(rb"-?[0-9]{1,19}")


def _nothing(source: Source, key: str | None, fate: int) -> None:
    pass


def _no_turn(source: Source) -> ParkTicket | None:
    return None


def match_late_originals(expected: Expected) -> None:
    """Match the copies that were read before their originals."""
    for copies in (expected.unsent, expected.unsigned):
        early, copies[:] = copies[:], []
        copies += [one for one in early if not expected.is_copied(one, signed=copies is expected.unsent)]


def _deleted(record: ReadRecord) -> str:
    """Return the state key to delete: the Kafka key of a tombstone, as text."""
    if record.key is None:
        raise Inadmissible("null value, and no key")
    try:
        return record.key.decode()
    except UnicodeDecodeError:
        raise Inadmissible("null value, and a key that is no text") from None


def _digest(value: bytes | None) -> bytes:
    return hashlib.sha256(value or b"").digest()


def _dead_letter(record: ReadRecord, reason: str, parked: ParkTicket | None = None) -> ExpectedDeadLetter:
    value = record.value
    head = value if value is None else value[:DEAD_LETTER_BYTES_MAX]
    key = record.key if record.key is None else record.key[:DEAD_LETTER_BYTES_MAX]
    digest, length = hashlib.sha256(value or b"").hexdigest(), len(value or b"")
    return ExpectedDeadLetter(reason, key, head, digest, length, None if parked is None else str(parked))
