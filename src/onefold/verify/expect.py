"""From the records of the input log to what must exist: rows, dead letters, repartitioned copies. A record at a time.

A record of an input topic has exactly one fate:

    accepted       it changed the rows of its key, or was written on into an input of the pipeline's own
    ignored        well-formed, but it changes nothing (a duplicate, a late one)
    repartitioned  well-formed, but misrouted: it takes effect only as its copy in the partition of its key
    dead           inadmissible, by the contract or by a rule of the domain; or its key is parked (see `parks`)

An input record with a null value is a tombstone. The workload says what becomes of it: a dead letter, nothing, or that the model
is told which key it deletes, which is its Kafka key as a text.

A tick is a record of the topic `<domain>.ticks`, and has one of these fates but that of a repartitioned one. It is ignored when
its time is not later than that of the last tick of its partition that was not dead. Its time must agree with Kafka's time of it.

The copy of a misrouted record is a record of the input topic itself, in the partition of its key, with the key's text as
Kafka key, the same value, and headers that name the original, its time and the pipeline (see `owner`). It must exist exactly
once, and then has a fate of its own.

Memory grows with the rows, the dead letters, the misrouted records still waiting for their copy and the copies of a release that
signed none, plus one byte an input record (its fate); never with the records' contents.
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

#: What a tick says: the time, in milliseconds since 1970. It is the same contract in every domain.
TICK = contract_of(
    {"type": "record", "name": "Tick", "namespace": "onefold", "fields": [{"name": "at_ms", "type": "long"}]}
)
#: The last millisecond of the year 9999: no tick is later.
TICK_MS_MAX = 253_402_300_799_999
# How far a tick's time may lie from Kafka's time of its record. Brokers too refuse a time that is an hour ahead of theirs by
# default (message.timestamp.after.max.ms). A tick has the time of its interval's beginning, and an interval is a day at most.
_AHEAD_MS_MAX = 3_600_000
_BEHIND_MS_MAX = _AHEAD_MS_MAX + 86_400_000
#: Dead letters hold no more of the original value, or key, than this.
DEAD_LETTER_BYTES_MAX = 65_536


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        kind: a key of `kinds.KINDS`; empty: that of the schema's field of this name.
        generated: computed by Postgres from others.
    """

    name: str
    kind: str = ""
    generated: bool = False


@dataclass(frozen=True)
class Table:
    """A table, the output topic that fills it, and its columns.

    Attributes:
        only: the columns, where they are not just the fields of the topic's schema.
        but: columns that differ from those of the same name, or come after them.
        summed: its rows are made of several records of the topic: no single one has made any of them, and one that is a sum of
            nothing may be there or not.
        sums: what the table adds up, which the continuous verifier has to know.
        adds: columns of which an output record says by how much they grow, and not what they are.
        kafka_key: the field of an output record that is its Kafka key, or a function of the fields, as the handler names it by
            `Output(key=...)`; "": the state key of its input record.
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
        """All of them, each with its kind. Raises `CannotTell` when the contract has no such field, or no flat one."""
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
    """A view that must show, under these names, what a table holds."""

    name: str
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Workload:
    """A pipeline, as the verifier sees it.

    Attributes:
        fed: the inputs that the pipeline itself writes; its model is then `Feeding`.
        ticks: its processors write ticks; its model has a `tick` (see `TickingModel`).
        made: its workers make objects, which are judged as well; its model is then `Making`.
        queues: the outputs that no table wants, but workers; its model is then `Feeding`, too.
        tombstones: what becomes of an input record with a null value: "reject", it is a dead letter; "ignore", it changes
            nothing; "event", the model has a `delete` for it (see `DeletingModel`).
        on_dead_letter: what becomes of the later events of a key after one was rejected: "pass", the model gets them; "park",
            they wait as dead letters.
        not_judged: what nobody compares, each with the reason: output topics and tables that no table of the model is for, and
            fields and columns that none has, as `topic.field` and `table.column`.
        apart: without effect; a model of an earlier version may say it.
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
        """Every topic whose records change rows: the inputs, and the ticks."""
        return (*self.inputs, f"{self.name}.ticks") if self.ticks else self.inputs

    @property
    def outputs(self) -> dict[str, Table]:
        """By output topic the table that has a row for each key of its records."""
        return {table.topic: table for table in self.tables if not table.summed}

    @property
    def mentioned(self) -> set[str]:
        """The output topics, tables and views that are compared."""
        names = {*(table.name for table in self.tables), *(view.name for view in self.views)}
        return names | {*self.outputs, *self.queues, *self.fed}

    def unmentioned(self, written: Iterable[str], fields: Mapping[str, Iterable[str]]) -> Iterator[str]:
        """Output topics that are not compared, and fields of the others, as `topic.field`.

        Args:
            written: the pipeline's outputs.
            fields: of the records of each output.
        """
        yield from sorted({*written} - self.mentioned)
        for topic in self.outputs:
            tables = [table for table in self.tables if table.topic == topic]
            if all(table.only for table in tables):
                compared = {column.name for table in tables for column in (*table.only, *table.but)}
                yield from (f"{topic}.{name}" for name in fields.get(topic, ()) if name not in compared)


class ExpectedDeadLetter(NamedTuple):
    """What must be found in the dead-letter topic. `parked`: the turn that it must name; None: none."""

    reason: str
    key: bytes | None
    head: bytes | None
    sha256: str
    length: int
    parked: str | None = None

    def is_cut(self) -> bool:
        """Whether it may hold less than the record's key and value."""
        return self.length > len(self.head or b"") or len(self.key or b"") >= DEAD_LETTER_BYTES_MAX


class Copy(NamedTuple):
    """Of a misrouted record: the partition of its key, its key there, and a digest of its value."""

    partition: int
    key: bytes
    digest: bytes


class Sent(NamedTuple):
    """When a record was sent, in milliseconds since 1970, None if Kafka does not know it; and the headers of its sender."""

    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, record: ReadRecord) -> "Sent":
        """Of a record as its sender gave it."""
        return cls(record.timestamp_ms, tuple(record.headers))

    def differing(self, other: "Sent") -> dict[str, tuple[Any, Any]]:
        """What another record with the same time and headers should have, and has."""
        wrong: dict[str, tuple[Any, Any]] = {}
        if self.timestamp_ms != other.timestamp_ms and self.timestamp_ms is not None:
            wrong[COPY_HEADER] = self.timestamp_ms, other.timestamp_ms
        if self.headers != other.headers:
            wrong["headers"] = list(self.headers), list(other.headers)
        return wrong


class UnsentCopy(NamedTuple):
    """A copy that no original asks for yet. `sent`: what it says of its original; None: it is of a release that said nothing."""

    lies_at: Source
    original: Source
    copy: Copy
    sent: Sent | None


@dataclass
class Expected:
    """What must exist. `uncopied`: misrouted records without a copy. `unsent`: copies that nothing asks for. `unsigned`: records
    that may be such copies, of a release that signed none, or anybody's. `copied`: those that are. `changed`: what copies have
    otherwise than their originals. `fed`: what the pipeline must have written into inputs of its own, and has. `mistimed`: ticks
    that Kafka's time of them contradicts.
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
        """Copies that nothing asks for, each with its original. An unsigned one is known to be a copy when it is there twice."""
        again = [one for one in self.unsigned if one[1:3] in self.copied]
        return [(one.lies_at, one.original) for one in (*self.unsent, *again)]

    def is_copied(self, one: UnsentCopy, *, signed: bool) -> bool:
        """Whether an original that waited for this copy has it now."""
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
        """The fate of an input record, `Fate.NONE` when there is none at that place."""
        fates = self.fates.get(source[:2], b"")
        return fates[source.offset] if 0 <= source.offset < len(fates) else Fate.NONE


class Oracle:
    """Reads the input log and knows what must exist. Records of one partition come in the order of their offsets.

    Args:
        partitions: of each input.
        queues: by queue its partitions, where these are not as many.
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
        #: Of each record, whether it counts no more where it lies, because it was a dead letter and was replayed or dropped.
        self.withdrawn: Callable[[ReadRecord, Source], bool] = lambda record, source: False
        #: Of each of these, the turn that its dead letter in this life has named; None: it has named none.
        self.parked: Callable[[Source], ParkTicket | None] = _no_turn
        self._parks = Parks() if workload.on_dead_letter == "park" else None
        #: Called after each input record that the model took: where it lies, its state key (None: it was a tick), and its fate.
        self.changed: Callable[[Source, str | None, int], None] = _nothing
        self._partitions = partitions
        self._registry = registry
        named = (*workload.inputs, *workload.queues)
        self._contracts = {topic: contracts(workload.name)[topic] for topic in named}
        self._partitions_by_key: dict[str, int] = {}
        #: The state key of the last record that was well-formed and no tick.
        self.key = ""
        self._ticks = f"{workload.name}.ticks" if workload.ticks else None
        # Per partition the time of the last tick.
        self._ticked: dict[int, int] = {}
        self.expected = Expected(
            workload.model(), fed=Fed({topic: queues.get(topic, partitions) for topic in workload.queues})
        )

    def feed(self, record: ReadRecord) -> int:
        """Take one record of an input topic, or one tick; returns its fate."""
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
        """Take one record of a queue, in any order; not what a pipeline that reads the queue puts there, which is no job."""
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
        """What must exist after the records so far. More may be fed afterwards."""
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
        if fed and not deletes:  # nothing that a pipeline writes is null
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
        """The turn of a record that is a dead letter. None: its key is not known, or it was withdrawn in an earlier life."""
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
        """A copy may be read before its original: partitions are read side by side. `settled` compares again."""
        # A release that signed no copies may have given them no time either.
        expected, copy = self.expected, Copy(record.partition, record.key or b"", _digest(record.value))
        copies = expected.unsent if self.owner.wrote(record) else expected.unsigned
        said = record.header(COPY_HEADER)
        sent = None if said is None else Sent.of(self.owner.as_sent(record))
        if sent is not None and said is not None and _ANY_TIME.fullmatch(said):
            sent = sent._replace(timestamp_ms=int(said))  # also one that no handler takes for a time
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
# As Kafka has times of records, in 64 bits.
_ANY_TIME = re.compile(rb"-?[0-9]{1,19}")


def _nothing(source: Source, key: str | None, fate: int) -> None:
    pass


def _no_turn(source: Source) -> ParkTicket | None:
    return None


def match_late_originals(expected: Expected) -> None:
    """Copies that were read before their originals are no more unsent than these are uncopied."""
    for copies in (expected.unsent, expected.unsigned):
        early, copies[:] = copies[:], []
        copies += [one for one in early if not expected.is_copied(one, signed=copies is expected.unsent)]


def _deleted(record: ReadRecord) -> str:
    """What a tombstone deletes: its Kafka key is the text of the state key."""
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
