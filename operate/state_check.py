"""The states in a pipeline's changelog, compared with what the handler makes of the input records.

`verify` compares output records and rows. A wrong state shows in the next output record of its key, and a key without further
events has none. So the handler processes all input records again: up to the progress in the changelog, in the recorded merge
order, and without those that are dead letters. The last state of each key in the changelog must be the one that it makes.

The pipeline's own handler, as it is now, makes these states. The comparison shows that the changelog has lost, doubled or changed
no state. Whether the handler is right, the verification model says. A process that verifies loads this module after its verdict.

Memory: the states of all keys, and what the changelog has of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from onefold import pipelines
from onefold.error_codes import Code, CodedError
from onefold.operate.values import readable
from onefold.processor import loading
from onefold.processor.core.abc import Codec
from onefold.processor.core.errors import Corrupted, ProcessorError, Rejected
from onefold.processor.core.fold import fold
from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import Record
from onefold.processor.io.partitioner import partition_of
from onefold.processor.runtime.changelog import Progress, told
from onefold.processor.runtime.store import STATE, Store
from onefold.proof import owner, record
from onefold.proof.kafka import KAFKA, Kafka
from onefold.proof.log import Log
from onefold.proof.order import Order
from onefold.proof.verdict import INVALID, UNKNOWN, VALID, CannotTell, Check, Finding, Verdict

if TYPE_CHECKING:
    from onefold.config.settings import Settings

# Records that the handler processes before the store takes their states.
_BATCH = 1_000

#: Told what is done, and how many records were read.
Told = Callable[[str, int], None]


class Compared(NamedTuple):
    """What the comparison says.

    Attributes:
        findings: the states that are wrong.
        check: how many keys should have a state, and have one.
        unknown: why some states cannot be compared; None: all were.
    """

    findings: list[Finding]
    check: Check
    unknown: CodedError | None


def add_to(verdict: Verdict, settings: Settings, told: Told) -> None:
    """Compare the states of the verdict's pipeline, and add what comes of it to the verdict."""
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
    except pipelines.Faulty as fault:
        unknown = CodedError(Code.PIPELINE_WRONG, str(fault))
    except CodedError as error:
        unknown = error
    except Exception as error:  # noqa: BLE001 - a check that fails, however it does, has proved nothing
        unknown = CodedError(Code.NO_VERDICT, f"the comparison itself failed: {type(error).__name__}: {error}")
    _decide(verdict, found, unknown)
    verdict.seconds = round(verdict.seconds + time.monotonic() - began_at, 3)


def _decide(verdict: Verdict, found: list[Finding], unknown: CodedError) -> None:
    if found:
        # What an unknown verdict has found proves nothing; a wrong state does.
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


def compare(topology: Topology, codec: Codec, client: dict[str, Any], told: Told, kafka: Kafka = KAFKA) -> Compared:
    """Compare the states of all tasks, and those that differ once more. Kafka may compact the changelog while it is read: then a
    record before the progress is gone, and its successor lies behind. Raises `CannotTell` and `ProcessorError` if none can be
    compared.
    """
    first = _compare(topology, codec, client, told, kafka)
    if not first.findings:
        return first
    again = _compare(topology, codec, client, told, kafka)
    named = {tuple(one.key.values()) for one in first.findings}
    still = [one for one in again.findings if tuple(one.key.values()) in named]
    return again._replace(findings=still)


def _compare(topology: Topology, codec: Codec, client: dict[str, Any], told: Told, kafka: Kafka) -> Compared:
    stored = _stored(topology, client, kafka)
    dead = _dead(topology, client, kafka)
    order = [topology.order] if topology.order else []
    with closing(kafka.log(client, [*topology.reads, *order, topology.changelog])) as log:
        log.check_partitions((*topology.reads, topology.changelog))
        _check_whole(log, topology)
        for one in stored.values():
            one.check(topology, log)
        tasks = _processed(topology, codec, log, stored, dead, told)
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
        return Compared([], check, CannotTell(Code.RECORDS_DELETED, text))
    if lost:
        text = f"Kafka has deleted the beginning of {topology.changelog}, and {lost:,} states may have been there"
        return Compared(findings, check, CannotTell(Code.RECORDS_DELETED, text))
    return Compared(findings, check, None)


@dataclass
class _Stored:
    """What the changelog partition of a task holds.

    Attributes:
        states: by the state key, where the last record lies, and its value.
        is_cut: whether Kafka has deleted its beginning.
    """

    is_cut: bool
    states: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    others: dict[bytes, bytes | None] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)

    def take(self, read: record.Record) -> None:
        key = read.key or b""
        if not key.startswith(STATE):
            self.others[key] = read.value
        elif read.value is None:
            self.states.pop(_key(key), None)
        else:
            self.states[_key(key)] = read.offset, read.value

    def check(self, topology: Topology, log: Log) -> None:
        """Raises `CannotTell` or `Refused` where its progress is not one in these topics."""
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
    """The state key, also of what no processor has written."""
    return key[len(STATE) :].decode(errors="backslashreplace")


def _stored(topology: Topology, client: dict[str, Any], kafka: Kafka) -> dict[int, _Stored]:
    changelog = topology.changelog
    with closing(kafka.log(client, [changelog])) as log:
        ends = log.stable_ends()
        found = {partition: _Stored(start > 0) for (_, partition), start in log.starts().items()}

        def take(read: record.Record) -> None:
            if read.offset < ends[changelog, read.partition]:
                found[read.partition].take(read)

        log.read(ends, take)
    for one in found.values():
        one.progress, _ = told(topology, one.others)
    return found


def _dead(topology: Topology, client: dict[str, Any], kafka: Kafka) -> set[record.Source]:
    """The input records that are dead letters. They are as many as the progress in the changelog says, or more."""
    found = set[record.Source]()
    with closing(kafka.log(client, [*topology.dead.values()])) as log:
        _check_whole(log, topology)
        ours = owner.Owner(log.cluster_id, topology.name)

        def take(read: record.Record) -> None:
            source = record.source_of(read.header(owner.SOURCE_HEADER))
            if source is not None and ours.wrote(read) is not False:
                found.add(source)

        log.read(log.high_ends(), take)
    return found


def _check_whole(log: Log, topology: Topology) -> None:
    for (topic, partition), start in log.starts().items():
        if start and topic != topology.changelog:
            raise CannotTell(
                Code.RECORDS_DELETED,
                f"{topic}/{partition} starts at offset {start}: the states of what was before cannot be made again",
            )


class _Task:
    """Makes the states of a partition again."""

    def __init__(
        self,
        topology: Topology,
        codec: Codec,
        partition: int,
        partitions: int,
        stored: _Stored,
        dead: set[record.Source],
    ) -> None:
        # What it writes is compared by `verify`.
        self._topology = replace(topology, emit_change=None)
        self._codec = codec
        self._partition_of = partial(partition_of, partitions=partitions)
        self._records: list[Record] = []
        self._ticked_ms = 0
        self.partition = partition
        self.stored = stored
        self.store = Store()
        self._dead = dead

    def take(self, taken: Record) -> None:
        """The next input record."""
        self._records.append(taken)
        if len(self._records) == _BATCH:
            self.flush()

    def flush(self) -> None:
        """Process what was taken. Raises `CannotTell` if the handler cannot."""
        records, self._records = self._records, []
        try:
            made = fold(self._topology, self.store, records, self._decode, self._partition_of, self._ticked_ms)
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
        self._ticked_ms = made.ticked_ms

    def _decode(self, taken: Record) -> Any:
        if record.Source(*taken[:3]) in self._dead:
            raise Rejected("it is a dead letter", Code.REJECTED)
        return self._codec.decode(taken)


class _Envelope(NamedTuple):
    """What an input record carries besides its key and value, as the Kafka client gives it."""

    read: record.Record

    def timestamp(self) -> tuple[int, int]:
        return 1, -1 if self.read.timestamp_ms is None else self.read.timestamp_ms

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.read.headers or None


def _processed(
    topology: Topology,
    codec: Codec,
    log: Log,
    stored: dict[int, _Stored],
    dead: set[record.Source],
    told: Told,
) -> list[_Task]:
    """The tasks, with the states that the handler makes of all input records before the progress."""
    partitions, life = log.topics[topology.reads[0]].partitions, log.topics[topology.changelog].topic_id
    tasks = [_Task(topology, codec, partition, partitions, stored[partition], dead) for partition in range(partitions)]
    ours = Owner(log.cluster_id, topology.name, life)
    ends = {(topic, at): to for at, one in stored.items() for topic, to in one.progress.offsets_next.items()}

    def process(read: record.Record) -> None:
        for one in ours.of([Record(*read[:5], _Envelope(read))]):
            tasks[read.partition].take(one)

    order = Order(topology.reads, process, stops=True)

    def take(read: record.Record) -> None:
        if log.records % 10_000 == 0:
            told("making the states", log.records)
        if read.topic == topology.order:
            order.add(read)
        elif read.offset < ends.get(read[:2], 0):
            order.feed(read) if topology.order else process(read)

    log.read(ends | {place: end for place, end in log.high_ends().items() if place[0] == topology.order}, take)
    if unordered := order.unordered():
        raise CannotTell(Code.PROGRESS_UNKNOWN, unordered)
    for task in tasks:
        task.flush()
    return tasks


def _differences(topology: Topology, codec: Codec, task: _Task) -> Iterator[Finding]:
    stored = task.stored.states
    for key in sorted({key for key, _ in task.store.items()} | stored.keys()):
        state, (offset, found) = task.store.get(key), stored.get(key, (0, None))
        made = None if state is None else codec.encode_state(state)
        if made == found:
            continue
        text = "the handler makes another state of the input records"
        try:
            if found is not None and codec.decode_state(topology, found) == state:
                continue  # a set has no order, and some members cannot be put into one
            right, is_ = (data and _canonical(topology, codec, data) for data in (made, found))
        except Corrupted as error:
            right, is_, text = made, found, str(error)
        if right != is_:
            where = f"{topology.changelog}/{task.partition}/{offset}" if found is not None else None
            row = {"key": key, "partition": task.partition}
            yield Finding("wrong state", topology.changelog, row, _columns(right, is_), where, text=text)


def _canonical(topology: Topology, codec: Codec, data: bytes) -> bytes:
    """The same bytes for the same state: of fields that an earlier version did not have, and of sets in any order."""
    plain = msgspec.to_builtins(codec.decode_state(topology, data), str_keys=True, order="deterministic")
    return msgspec.json.encode(plain)


def _columns(right: bytes | None, found: bytes | None) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, of two states with fields; else the states."""
    try:
        should, is_ = json.loads(right or b"null"), json.loads(found or b"null")
    except ValueError:
        should = is_ = None
    if isinstance(should, dict) and isinstance(is_, dict):
        names = [name for name in {**should, **is_} if should.get(name) != is_.get(name)]
    else:
        names = []
    if names:
        return {name: (_shown(should.get(name)), _shown(is_.get(name))) for name in names}
    return {"state": (readable(right), readable(found))}


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else readable(json.dumps(value).encode())
