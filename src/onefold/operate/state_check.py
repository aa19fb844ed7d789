"""Compare the states in a pipeline's changelog with the states that the handler computes from the input records.

`verify` compares output records and rows. A wrong state shows in the next output record of its key, but a key without further
events has no next output record. So the handler processes all input records again, up to the progress in the changelog, in the
recorded merge order, and without dead letters. The last state of each key in the changelog must be equal to the computed state.

The present handler of the pipeline computes these states. The comparison shows that the changelog has lost, doubled or changed
no state. The verification model finds errors of the handler itself. A verifier process loads this module after its
verdict.

Memory: the computed and the stored states of all keys.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from onefold import pipelines
from onefold.error_codes import Code, CodedError
from onefold.operate.shown_values import readable
from onefold.processor import loading
from onefold.processor.core.abc import Codec
from onefold.processor.core.errors import Corrupted, ProcessorError, Rejected
from onefold.processor.core.fold import fold, state_key
from onefold.processor.core.owner import Owner
from onefold.processor.core.parking import Parking, Ticket, parking
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import PARKED_HEADER, Record
from onefold.processor.io.partitioner import partition_of
from onefold.processor.runtime.changelog import TaskProgress, told
from onefold.processor.runtime.state_store import STATE, MemoryStateStore
from onefold.verify import record, writer_identity
from onefold.verify.kafka import KAFKA, Kafka
from onefold.verify.log import Log
from onefold.verify.order import Order
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, CannotTell, Check, Finding, Verdict

if TYPE_CHECKING:
    from onefold.config.settings import Settings

# Records in one call of `fold`, before the store takes the new states.
_BATCH = 1_000

#: A callback for the current activity, and the number of records so far.
Told = Callable[[str, int], None]


class StateComparison(NamedTuple):
    """The result of the comparison.

    Attributes:
        findings: the wrong states.
        check: the number of keys that should have a state, and that have a state.
        unknown: why some states could not be compared; None: all states were compared.
    """

    findings: list[Finding]
    check: Check
    unknown: CodedError | None


def add_to(verdict: Verdict, settings: Settings, told: Told) -> None:
    """Compare the states of the verdict's pipeline, and add the result to the verdict."""
    began_at = time.monotonic()
    found, unknown = list[Finding](), CodedError(Code.NO_VERDICT, "")
    try:
        topology = loading.load_topology(pipelines.find()[verdict.domain])
        codec = loading.codec_of(topology, settings.schema_registry_url)
        found, check, reason = compare(topology, codec, settings.client(), told)
        verdict.checks.append(check)
        if reason is None:
            verdict.states = check.found
        else:
            unknown = reason
    except pipelines.InvalidDeclaration as fault:
        unknown = CodedError(Code.PIPELINE_WRONG, str(fault))
    except CodedError as error:
        unknown = error
    except Exception as error:  # noqa: BLE001 - a check that fails, however it does, has proved nothing
        unknown = CodedError(Code.NO_VERDICT, f"the comparison itself failed: {type(error).__name__}: {error}")
    _decide(verdict, found, unknown)
    verdict.seconds = round(verdict.seconds + time.monotonic() - began_at, 3)


def _decide(verdict: Verdict, found: list[Finding], unknown: CodedError) -> None:
    if found:
        # The findings of an unknown verdict prove nothing; a wrong state does.
        verdict.findings = [*(verdict.findings if verdict.outcome == INVALID else ()), *found]
        verdict.outcome, verdict.code = INVALID, ""
        verdict.reason = f"{len(verdict.findings)} differences from what follows from the input log"
    elif verdict.outcome == VALID and verdict.states is not None:
        verdict.reason += ", and so is every state"
    if verdict.states is None and verdict.outcome == VALID:
        verdict.outcome, verdict.code = UNKNOWN, str(unknown.code)
        verdict.reason = f"not every state could be compared: {unknown}"
    elif verdict.states is None:
        verdict.reason += f"; not every state could be compared: {unknown}"


def compare(
    topology: Topology, codec: Codec, client: dict[str, Any], told: Told, kafka: Kafka = KAFKA
) -> StateComparison:
    """Compare the states of all tasks, and the differing states a second time. Kafka may compact the changelog during the read:
    then a record before the progress is gone, and its successor follows after the progress. Raises `CannotTell` and
    `ProcessorError` if no state can be compared.
    """
    first = _compare(topology, codec, client, told, kafka)
    if not first.findings:
        return first
    again = _compare(topology, codec, client, told, kafka)
    named = {tuple(one.key.values()) for one in first.findings}
    still = [one for one in again.findings if tuple(one.key.values()) in named]
    return again._replace(findings=still)


def _compare(topology: Topology, codec: Codec, client: dict[str, Any], told: Told, kafka: Kafka) -> StateComparison:
    stored = _stored(topology, client, kafka)
    dead = _dead(topology, client, kafka)
    order = [topology.order] if topology.order else []
    with closing(kafka.log(client, [*topology.reads, *order, topology.changelog])) as log:
        log.check_partitions((*topology.reads, topology.changelog))
        _check_whole(log, order)
        for one in stored.values():
            one.check(topology, log)
        gone = _gone(topology, log, stored)
        try:
            tasks = _processed(topology, codec, log, stored, dead, told)
        except CannotTell:
            if gone:
                raise gone from None
            raise
        if gone and any(task.taken != sum(task.stored.progress.counts) for task in tasks):
            raise gone
        told("comparing the states", log.records)
        compacted = log.compacted(topology.inputs)
    check = Check("states", sum(len(task.store) for task in tasks), sum(len(one.states) for one in stored.values()))
    findings, lost = list[Finding](), 0
    for task in tasks:
        for found in _differences(topology, codec, task):
            if found.output is None and task.stored.is_cut:
                lost += 1
            else:
                findings.append(found)
    if findings and compacted:
        text = f"states differ, but {', '.join(compacted)} is compacted (cleanup.policy), and may have lost records"
        return StateComparison([], check, CannotTell(Code.RECORDS_DELETED, text))
    if lost:
        text = f"Kafka has deleted the beginning of {topology.changelog}, and {lost:,} states may have been there"
        return StateComparison(findings, check, CannotTell(Code.RECORDS_DELETED, text))
    return StateComparison(findings, check, None)


@dataclass
class _Stored:
    """The contents of a task's changelog partition.

    Attributes:
        states: the offset and value of the last record, by state key.
        is_cut: whether Kafka has deleted the beginning of the partition.
        progress_at: the offset of the progress record.
    """

    is_cut: bool
    states: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    others: dict[bytes, bytes | None] = field(default_factory=dict)
    progress: TaskProgress = field(default_factory=TaskProgress)
    progress_at: int = 0

    def take(self, read: record.ReadRecord) -> None:
        key = read.key or b""
        if not key.startswith(STATE):
            self.others[key] = read.value
            self.progress_at = read.offset if key == PROGRESS_KEY else self.progress_at
        elif read.value is None:
            self.states.pop(_key(key), None)
        else:
            self.states[_key(key)] = read.offset, read.value

    def check(self, topology: Topology, log: Log) -> None:
        """Raises `CannotTell` or `Refused` if the progress does not belong to these topics."""
        progress = self.progress
        if said := self.others.get(PROGRESS_KEY):
            log.check_states(topology.name, json.loads(said), topology.reads[0])
        progress.same_topics({topic: log.topics[topic].topic_id for topic in topology.reads})
        former = {topic for topic, (_, offset) in progress.former.items() if offset}
        for topic in sorted(former | {*progress.offsets_next} - {*topology.reads}):
            raise CannotTell(
                Code.PROGRESS_UNKNOWN,
                f"the states hold records of {topic}, which {topology.name} does not read any more",
            )


def _key(key: bytes) -> str:
    """The state key, also of foreign records."""
    return key[len(STATE) :].decode(errors="backslashreplace")


def _stored(topology: Topology, client: dict[str, Any], kafka: Kafka) -> dict[int, _Stored]:
    changelog = topology.changelog
    with closing(kafka.log(client, [changelog])) as log:
        ends = log.stable_ends()
        found = {partition: _Stored(start > 0) for (_, partition), start in log.starts().items()}

        def take(read: record.ReadRecord) -> None:
            if read.offset < ends[changelog, read.partition]:
                found[read.partition].take(read)

        log.read(ends, take)
    for one in found.values():
        one.progress, _ = told(topology, one.others)
    return found


def _dead(topology: Topology, client: dict[str, Any], kafka: Kafka) -> dict[record.Source, bytes | None]:
    """The input records with dead letters, each with its ticket if the key was parked. Their number is at least the number in
    the changelog's progress.
    """
    found = dict[record.Source, bytes | None]()
    with closing(kafka.log(client, [*topology.dead.values()])) as log:
        _check_whole(log, topology.dead.values())
        ours = writer_identity.WriterIdentity(log.cluster_id, topology.name)

        def take(read: record.ReadRecord) -> None:
            source = record.source_of(read.header(writer_identity.SOURCE_HEADER))
            if source is not None and ours.wrote(read) is not False:
                found[source] = read.header(PARKED_HEADER)

        log.read(log.high_ends(), take)
    return found


def _check_whole(log: Log, topics: Collection[str]) -> None:
    """Raises `CannotTell` if Kafka has deleted the beginning of one of these topics."""
    for (topic, partition), start in log.starts().items():
        if start and topic in topics:
            raise CannotTell(
                Code.RECORDS_DELETED,
                f"{topic}/{partition} starts at offset {start}: the states of what was before cannot be made again",
            )


def _gone(topology: Topology, log: Log, stored: Mapping[int, _Stored]) -> CannotTell | None:
    """Why the input log is incomplete, if the processor has processed no more records than the log still has, as after a reset;
    None: the inputs are complete. Raises `CannotTell` if it has processed more.
    """
    try:
        _check_whole(log, topology.reads)
    except CannotTell as gone:
        starts = log.starts()
        for at, one in stored.items():
            there = sum(max(0, end - starts[topic, at]) for topic, end in one.progress.offsets_next.items())
            if there < sum(one.progress.counts):
                raise
        return gone
    return None


class _StateRebuild:
    """Computes the states of a partition again."""

    def __init__(
        self,
        topology: Topology,
        codec: Codec,
        partition: int,
        partitions: int,
        stored: _Stored,
        dead: Mapping[record.Source, bytes | None],
        signature: bytes,
    ) -> None:
        # `verify` compares the outputs.
        self._topology = without = replace(topology, emit_change=None)
        self._parking: Parking | None = None
        if topology.on_dead_letter == "park":
            self._topology, self._parking = parking(without), Parking(without, signature, self._key_of)
        self._codec = codec
        self._partition_of = partial(partition_of, partitions=partitions)
        self._records: list[Record] = []
        self.taken = self.ticked_ms = 0
        self.partition = partition
        self.stored = stored
        self.store = MemoryStateStore()
        self._dead = dead

    def take(self, taken: Record) -> None:
        """Add the next input record."""
        self.taken += 1
        self._records.append(taken)
        if len(self._records) == _BATCH:
            self.flush()

    def flush(self) -> None:
        """Process the added records. Raises `CannotTell` if the handler fails."""
        records, self._records = self._records, []
        try:
            made = fold(
                self._topology, self.store, records, self._decode, self._partition_of, self.ticked_ms, self._parking
            )
        except ProcessorError:
            raise
        except Exception as error:
            between = f"{records[0].source.decode()} to {records[-1].source.decode()}"
            raise CannotTell(
                Code.NO_VERDICT,
                f"the handler raises {type(error).__name__}: {error}, at a record of {between} that is no dead letter",
            ) from error
        if letter := next((one for one in made.dead_letters if record.Source(*one.record[:3]) not in self._dead), None):
            raise CannotTell(
                Code.NO_VERDICT,
                f"today's schema or handler rejects {letter.record.source.decode()}, which is no dead letter: {letter.reason}",
            )
        self.store.apply(made.changes)
        self.ticked_ms = made.ticked_ms

    def _key_of(self, taken: Record) -> str | None:
        """The state key. For a dead letter the ticket has the key, because the processor may have been unable to read it from
        the record.
        """
        source = record.Source(*taken[:3])
        if source not in self._dead:
            return state_key(self._topology, self._codec.decode, taken)
        ticket = Ticket.decode(self._dead[source])
        return None if ticket is None else ticket.key

    def _decode(self, taken: Record) -> Any:
        if record.Source(*taken[:3]) in self._dead:
            raise Rejected("it is a dead letter", Code.REJECTED)
        return self._codec.decode(taken)


class _Envelope(NamedTuple):
    """Timestamp and headers of an input record, with the interface of a Kafka client's message."""

    read: record.ReadRecord

    def timestamp(self) -> tuple[int, int]:
        return 1, -1 if self.read.timestamp_ms is None else self.read.timestamp_ms

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.read.headers or None


def _processed(
    topology: Topology,
    codec: Codec,
    log: Log,
    stored: dict[int, _Stored],
    dead: Mapping[record.Source, bytes | None],
    told: Told,
) -> list[_StateRebuild]:
    """Process all input records before the progress, and return the tasks with the computed states."""
    partitions, life = log.topics[topology.reads[0]].partitions, log.topics[topology.changelog].topic_id
    ours = Owner(log.cluster_id, topology.name, life)
    tasks = [
        _StateRebuild(topology, codec, partition, partitions, stored[partition], dead, ours.signature)
        for partition in range(partitions)
    ]
    ends = {(topic, at): to for at, one in stored.items() for topic, to in one.progress.offsets_next.items()}

    def processed(read: record.ReadRecord) -> Sequence[Record]:
        return ours.of([Record(*read[:5], _Envelope(read))])

    def process(read: record.ReadRecord) -> None:
        for one in processed(read):
            tasks[read.partition].take(one)

    order = Order(topology.reads, process, stops=True)

    def take(read: record.ReadRecord) -> None:
        if log.records % 10_000 == 0:
            told("making the states", log.records)
        if read.topic == topology.order:
            order.add(read)
        elif read.offset < ends.get(read[:2], 0) and processed(read):  # the order omits the rest too
            order.feed(read) if topology.order else process(read)

    log.read(ends | {place: end for place, end in log.high_ends().items() if place[0] == topology.order}, take)
    if unordered := order.unordered():
        raise CannotTell(Code.PROGRESS_UNKNOWN, unordered)
    for task in tasks:
        task.flush()
    return tasks


def _differences(topology: Topology, codec: Codec, task: _StateRebuild) -> Iterator[Finding]:
    stored, partition = task.stored.states, task.partition
    for key in sorted({key for key, _ in task.store.items()} | stored.keys()):
        state, (offset, found) = task.store.get(key), stored.get(key, (0, None))
        made = None if state is None else codec.encode_state(state)
        if made == found:
            continue
        columns, text = (
            {"state": (readable(made), readable(found))},
            "the handler makes another state of the input records",
        )
        if made is not None and found is not None:
            try:
                right, is_ = codec.decode_state(topology, made), codec.decode_state(topology, found)
            except Corrupted as error:
                text = str(error)
            else:
                if is_same(right, is_):
                    continue
                columns = _columns(right, is_) or columns
        where = f"{topology.changelog}/{partition}/{offset}" if found is not None else None
        yield Finding(
            "wrong state", topology.changelog, {"key": key, "partition": partition}, columns, where, text=text
        )
    if topology.tick is not None and task.ticked_ms != (ticked_ms := task.stored.progress.ticked_ms):
        where = f"{topology.changelog}/{partition}/{task.stored.progress_at}"
        text = "the time of the last tick: the processor ignores each tick that is not later"
        yield Finding(
            "wrong state",
            topology.changelog,
            {"partition": partition},
            {"ticked_ms": (task.ticked_ms, ticked_ms)},
            where,
            text=text,
        )


def is_same(one: Any, other: Any) -> bool:
    """Whether a handler sees no difference between two values of the same type. The order of dict keys is visible to a handler;
    a set has no order.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return is_same([*one.items()], [*other.items()])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)  # NaN is unequal to itself, and -0.0 is equal to 0.0
    names = _fields(one)
    return all(is_same(getattr(one, name), getattr(other, name)) for name in names) if names else bool(one == other)


def _fields(value: Any) -> Sequence[str]:
    """The declared field names of a state or of a part of it; empty for any other value."""
    return getattr(value, "__struct_fields__", ()) or [*getattr(value, "__dataclass_fields__", ())]


def _columns(right: Any, found: Any) -> dict[str, tuple[Any, Any]]:
    """The differing fields of two states of one class with fields."""
    names = _fields(right) if type(right) is type(found) else ()
    both = {name: (getattr(right, name), getattr(found, name)) for name in names}
    return {name: (_shown(one), _shown(other)) for name, (one, other) in both.items() if not is_same(one, other)}


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else readable(msgspec.json.encode(value))
