"""From the records of the input log to what must exist: rows, dead letters, repartitioned copies. A record at a time.

A record of an input topic has exactly one fate:

    accepted       it changed the rows of its key, or was written on into an input of the pipeline's own
    ignored        well-formed, but it changes nothing (a duplicate, a late one)
    repartitioned  well-formed, but misrouted: it takes effect only as its copy in the partition of its key
    dead           inadmissible, by the contract or by a rule of the domain

A tick is a record of the topic `<domain>.ticks`, and has one of these fates but that of a repartitioned one. It is ignored when
its time is not later than that of the last tick of its partition that was not dead.

The copy of a misrouted record is a record of the input topic itself, in the partition of its key, with the key's text as
Kafka key, the same value, and a header that names the original. It must exist exactly once, and then has a fate of
its own.

Memory grows with the rows, the dead letters and the misrouted records still waiting for their copy, plus one byte an
input record (its fate); never with the records' contents.
"""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

from onefold.proof.contracts import contract_of, contracts
from onefold.proof.decode import Inadmissible, Registry, decode, decode_output
from onefold.proof.fates import Counts, Fate
from onefold.proof.fed import Fed, Fields
from onefold.proof.kinds import kind_of
from onefold.proof.objects import Store
from onefold.proof.placement import partition_of
from onefold.proof.summed import Gathered, Sums
from onefold.proof.verdict import CannotTell, Check, Finding

#: The header by which a record says which input record caused it, as text `topic/partition/offset`.
SOURCE_HEADER = "onefold-source"
#: What a tick says: the time, in milliseconds since 1970. It is the same contract in every domain.
TICK = contract_of(
    {"type": "record", "name": "Tick", "namespace": "onefold", "fields": [{"name": "at_ms", "type": "long"}]}
)
#: The last millisecond of the year 9999: no tick is later.
TICK_MS_MAX = 253_402_300_799_999
#: The header that a copy has besides: when its original was sent. What the pipeline feeds itself has none.
COPY_HEADER = "onefold-timestamp"
#: Dead letters hold no more of the original value, or key, than this.
DEAD_LETTER_BYTES_MAX = 65_536


class Source(NamedTuple):
    """Where an input record lies."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def source_of(text: bytes | None) -> Source | None:
    """The source that a header names, or None when it names none."""
    try:
        topic, partition, offset = (text or b"").decode().rsplit("/", 2)
        return Source(topic, int(partition), int(offset))
    except ValueError:
        return None


class Record(NamedTuple):
    """A record of any topic as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 - never written to

    def header(self, name: str) -> bytes | None:
        """The last header of that name, as Kafka's own clients choose."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        kind: a key of `kinds.KINDS`; empty: that of the contract's field of this name.
        generated: computed by Postgres from others.
    """

    name: str
    kind: str = ""
    generated: bool = False


@dataclass(frozen=True)
class Table:
    """A table, the output topic that fills it, and its columns.

    Attributes:
        only: the columns, where they are not just the fields of the topic's contract.
        but: columns that differ from those of the same name, or come after them.
        summed: its rows are made of several records of the topic: no single one has made any of them, and one that is a sum of
            nothing may be there or not.
        sums: what of, which the auditor has to know.
        adds: columns of which an output record says by how much they grow, and not what they are. The auditor has to know it.
    """

    name: str
    topic: str
    key: tuple[str, ...]
    only: tuple[Column, ...] = ()
    but: tuple[Column, ...] = ()
    summed: bool = False
    sums: Sums | Gathered | None = None
    adds: tuple[str, ...] = ()

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """All of them, each with its kind. Raises `CannotTell` when the contract has no such field, or no flat one."""
        fields = contracts()[self.topic].fields
        named = {column.name: column for column in self.only or map(Column, fields)}
        named |= {column.name: column for column in self.but}
        if missing := {column.name for column in named.values() if not column.kind} - fields.keys():
            raise CannotTell(f"the contract of {self.topic} has no field {min(missing)!r}, and its model gives no kind")
        kinds = {name: column.kind or kind_of(fields[name]["type"]) for name, column in named.items()}
        return tuple(replace(column, kind=kinds[name]) for name, column in named.items())


@dataclass(frozen=True)
class View:
    """A view that must show, under these names, what a table holds."""

    name: str
    table: str
    columns: tuple[str, ...]


class Model(Protocol):
    """What a domain's rows must be."""

    @property
    def rows(self) -> Mapping[str, Mapping[tuple[Any, ...], tuple[tuple[Any, ...], Source]]]:
        """`rows[table][key]`: the values by column, and the source that last changed them."""

    def key(self, value: dict[str, Any], source: Source, /) -> str:
        """The text of the state key of a well-formed value."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take one value; False when it changes nothing. Raises `Inadmissible` when a rule forbids it."""

    def settle(self) -> None:
        """Bring `rows` up to date with all that was applied."""


class TickingModel(Model, Protocol):
    """What is right in a domain with ticks."""

    def tick(self, at_ms: int, source: Source) -> bool:
        """Take one tick, which is for the keys of its partition alone: those whose values had a source in it. False when it
        changes nothing. Raises `Inadmissible`, before it changes anything, when a rule forbids it.

        Args:
            at_ms: the time, in milliseconds since 1970. In one partition it only goes up.
            source: of the tick.
        """


class Feeding(Model, Protocol):
    """A model of a pipeline that feeds itself, or that has queues."""

    def feeds(self) -> Iterable[tuple[str, Fields]]:
        """What the value that was applied last makes the pipeline write into inputs of its own and into its queues: topic and
        all fields. It is asked for after values that changed something.
        """


class Making(Model, Protocol):
    """A model of a pipeline whose workers make objects in a store."""

    def unmade(self) -> str:
        """What was asked for and is not reported to be made, in one sentence; "" when all is."""

    def judge_made(self, store: Store) -> tuple[list[Check], list[Finding]]:
        """What was compared in the object store, and what is wrong there."""

    def follow_made(self, store: Store) -> Callable[[], Iterable[Finding]]:
        """What says, whenever it is asked, what is wrong with the objects that were reported since. An error of the store may
        come out of it; then it is asked again.
        """


@dataclass(frozen=True)
class Workload:
    """A domain, as the judge sees it.

    Attributes:
        fed: the inputs that the pipeline itself writes; its model is then `Feeding`.
        ticks: its processors write ticks; its model has a `tick` (see `TickingModel`).
        made: its workers make objects, which are judged as well; its model is then `Making`.
        queues: the outputs that no table wants, but workers; its model is then `Feeding`, too.
        apart: rows and fates follow from the inputs of one partition, whatever is in the others, but for tables of sums; several
            processes may judge it then.
    """

    name: str
    inputs: tuple[str, ...]
    tables: tuple[Table, ...]
    model: Callable[[], Model]
    views: tuple[View, ...] = ()
    fed: tuple[str, ...] = ()
    ticks: bool = False
    made: bool = False
    queues: tuple[str, ...] = ()
    apart: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Every topic whose records change rows: the inputs, and the ticks."""
        return (*self.inputs, f"{self.name}.ticks") if self.ticks else self.inputs

    @property
    def outputs(self) -> dict[str, Table]:
        """By output topic the table that has a row for each key of its records."""
        return {table.topic: table for table in self.tables if not table.summed}


class DeadLetter(NamedTuple):
    """What must be found in the dead-letter topic."""

    reason: str
    key: bytes | None
    head: bytes | None
    sha256: str
    length: int


class Copy(NamedTuple):
    """Of a misrouted record: the partition of its key, its key there, and a digest of its value."""

    partition: int
    key: bytes
    digest: bytes


@dataclass
class Expected:
    """What must exist. `uncopied`: misrouted records without a copy. `unsent`: copies that nothing asks for. `fed`: what the
    pipeline must have written into inputs of its own, and has.
    """

    model: Model
    counts: Counts = field(default_factory=Counts)
    dead: dict[Source, DeadLetter] = field(default_factory=dict)
    uncopied: dict[Source, Copy] = field(default_factory=dict)
    unsent: list[tuple[Source, Source, Copy]] = field(default_factory=list)
    fates: dict[tuple[str, int], bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    fed: Fed = field(default_factory=Fed)

    def fate(self, source: Source) -> int:
        """The fate of an input record, `Fate.NONE` when there is none at that place."""
        fates = self.fates.get(source[:2], b"")
        return fates[source.offset] if 0 <= source.offset < len(fates) else Fate.NONE


class Oracle:
    """Reads the input log and knows what must exist. Records of one partition come in the order of their offsets."""

    def __init__(self, workload: Workload, partitions: int, registry: Registry | None = None) -> None:
        self._workload = workload
        #: Of each record, whether it counts no more where it lies, because it was a dead letter and was put back.
        self.withdrawn: Callable[[Record, Source], bool] = lambda record, source: False
        self._partitions = partitions
        self._registry = registry
        named = (*workload.inputs, *workload.queues)
        self._contracts = {topic: contracts(workload.name)[topic] for topic in named}
        self._partitions_by_key: dict[str, int] = {}
        self._ticks = f"{workload.name}.ticks" if workload.ticks else None
        # Per partition the time of the last tick.
        self._ticked: dict[int, int] = {}
        self.expected = Expected(workload.model(), fed=Fed(workload.queues))

    def feed(self, record: Record) -> int:
        """Take one record of an input topic, or one tick; returns its fate."""
        source = Source(record.topic, record.partition, record.offset)
        named = record.header(SOURCE_HEADER) if record.headers else None
        fed = record.topic in self._workload.fed and record.header(COPY_HEADER) is None
        if named is not None and not fed:
            self._match_copy(record, source, named)
        try:
            fate = self._judge(record, source, fed, self.withdrawn(record, source))
        except Inadmissible as reason:
            self.expected.dead[source] = _dead_letter(record, str(reason))
            fate = Fate.DEAD
        self._note(source, fate)
        return fate

    def take_job(self, record: Record) -> None:
        """Take one record of a queue, in any order."""
        lies_at = f"{record.topic}/{record.partition}/{record.offset}"
        try:
            fields = decode_output(self._contracts[record.topic], record.value)
        except Inadmissible as reason:
            self.expected.fed.unreadable(record.topic, lies_at, str(reason))
        else:
            self.expected.fed.take(record.topic, lies_at, fields, source_of(record.header(SOURCE_HEADER)))

    def settled(self) -> Expected:
        """What must exist after the records so far. More may be fed afterwards."""
        expected = self.expected
        expected.model.settle()
        match_late_originals(expected)
        return expected

    def _judge(self, record: Record, source: Source, fed: bool, withdrawn: bool) -> int:
        if record.topic == self._ticks:
            return self._judge_tick(record, source)
        value = decode(self._contracts[record.topic], record.value, self._registry)
        if fed:
            self.expected.fed.take(record.topic, str(source), value, source_of(record.header(SOURCE_HEADER)))
        if withdrawn:
            raise Inadmissible("it was put back, and counts there")
        model = self.expected.model
        key = model.key(value, source)
        belongs = self._partitions_by_key.get(key)
        if belongs is None:
            belongs = self._partitions_by_key[key] = partition_of(key, self._partitions)
        if belongs != record.partition:
            self.expected.uncopied[source] = Copy(belongs, key.encode(), _digest(record.value))
            return Fate.REPARTITIONED
        if not model.apply(value, source):
            return Fate.IGNORED
        if self._workload.fed or self._workload.queues:
            for topic, fields in cast("Feeding", model).feeds():
                self.expected.fed.ask(topic, fields, source)
        return Fate.ACCEPTED

    def _judge_tick(self, record: Record, source: Source) -> int:
        at_ms = decode(TICK, record.value, self._registry)["at_ms"]
        if not 0 <= at_ms <= TICK_MS_MAX:
            raise Inadmissible(f"{at_ms} is no time")
        if at_ms <= self._ticked.get(record.partition, 0):
            return Fate.IGNORED
        model = self.expected.model
        if not hasattr(model, "tick"):
            raise CannotTell(f"the workload of {self._workload.name} says that it has ticks, and its model has no tick")
        changed = cast(TickingModel, model).tick(at_ms, source)
        self._ticked[record.partition] = at_ms
        return Fate.ACCEPTED if changed else Fate.IGNORED

    def _match_copy(self, record: Record, lies_at: Source, named: bytes) -> None:
        """A copy may be read before its original: partitions are read side by side. `settled` compares again."""
        original = source_of(named) or Source("?", -1, -1)
        copy = Copy(record.partition, record.key or b"", _digest(record.value))
        if original.topic == record.topic and self.expected.uncopied.get(original) == copy:
            del self.expected.uncopied[original]
        else:
            self.expected.unsent.append((lies_at, original, copy))

    def _note(self, source: Source, fate: int) -> None:
        fates = self.expected.fates[source[:2]]
        if len(fates) < source.offset:
            fates.extend(bytes(source.offset - len(fates)))
        fates.append(fate)
        self.expected.counts.count(fate)


def match_late_originals(expected: Expected) -> None:
    """Copies that were read before their originals are no more unsent than these are uncopied."""
    unsent = []
    for lies_at, original, copy in expected.unsent:
        if original.topic == lies_at.topic and expected.uncopied.get(original) == copy:
            del expected.uncopied[original]
        else:
            unsent.append((lies_at, original, copy))
    expected.unsent = unsent


def _digest(value: bytes | None) -> bytes:
    return hashlib.sha256(value or b"").digest()


def _dead_letter(record: Record, reason: str) -> DeadLetter:
    value = record.value
    head = value if value is None else value[:DEAD_LETTER_BYTES_MAX]
    key = record.key if record.key is None else record.key[:DEAD_LETTER_BYTES_MAX]
    return DeadLetter(reason, key, head, hashlib.sha256(value or b"").hexdigest(), len(value or b""))
