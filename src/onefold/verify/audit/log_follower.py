"""Read all topics of a pipeline as they grow, and compare each output record with the model as of its input record.

The model must not run ahead of the outputs: after a second change of a row, the values for its first output record are gone. So
input records wait. A transaction writes its progress to the changelog together with its results. The follower reads the
progress, then asks for the ends of the outputs, and reads up to these ends. After this, the follower has all results of the
input records before the progress. The model takes these input records one by one, and each output record of an input is
compared with the rows of the model.

The initial read works as in `verify`: the model runs ahead, and the last output record of each row is known.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from onefold.error_codes import Code
from onefold.verify.audit.frontier import Gate
from onefold.verify.audit.pace import PACE, Pace
from onefold.verify.audit.pending_feedback import Owed
from onefold.verify.audit.versions import Versions
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.expect import Workload
from onefold.verify.kafka import KAFKA, Kafka
from onefold.verify.log import Place
from onefold.verify.models import Making
from onefold.verify.objects import ObjectReader
from onefold.verify.outcomes import Fate
from onefold.verify.record import ReadRecord, Source, source_of
from onefold.verify.registry import SchemasById
from onefold.verify.state import Proved, begin, check_beginnings, owner_of, read_evenly, read_progress, topics_of
from onefold.verify.verdict import CannotTell, Finding, beyond_progress
from onefold.verify.writer_identity import SOURCE_HEADER

# The limit of waiting input records in memory. At the limit, the follower reads no more inputs of a stalled pipeline.
_WAITING_MAX = 200_000

Offsets = dict[Place, int]


class Following:
    """Follows one pipeline. Close after use.

    Args:
        alive: called repeatedly during the initial read.
        kafka: how to read Kafka.
        pace: how much one step reads and takes, to leave time for looks at the tables.

    Attributes:
        versions: the expected rows; after `begin`.
        began_at: by output partition, the end at the start.
        findings: the new mismatches; the caller removes them.
    """

    def __init__(
        self,
        workload: Workload,
        client: dict[str, Any],
        registry: SchemasById | None,
        kept: Checkpoints | None,
        alive: Callable[[], object] = lambda: None,
        kafka: Kafka = KAFKA,
        pace: Pace = PACE,
    ) -> None:
        self._pace = pace
        self._work, self._alive, self._kafka = workload, alive, kafka
        self._client = client
        self._topics = topics = topics_of(workload)
        self._tables = workload.outputs
        self._log = kafka.log(client, topics.all)
        self._written = [place for place in self._log.places if place[0] in topics.written]
        self._reads = [place for place in self._log.places if place[0] in workload.reads]
        self._waiting: dict[Place, deque[ReadRecord]] = {place: deque() for place in self._reads}
        self._paused = False
        self._applied: Offsets = {}
        self._is_applied = False  # whether `_applied` is what the model has taken
        #: False: an error stopped the model within a record, so the state is useless.
        self.is_whole = True
        self._letters: list[Source] = []
        #: Why the model cannot take records that the processor has processed, in one sentence; or "".
        self.unordered = ""
        self._gate: Gate | None = None
        self.findings = list[Finding]()
        self._off: dict[str, int] = {}  # by fate, the model's count minus the processor's
        # The inputs with a recorded progress beyond their end.
        self._beyond = set[tuple[str, int]]()
        # The last time at which all progress records had been read.
        self._told_at = self._compared_at = time.monotonic()
        # With feedback, queues or objects, a continuous verifier lacks part of a verdict's state, or has handed part of it out.
        self._leaves = kept is not None and not (workload.fed or workload.queues or workload.made)
        self._start(registry, kept)

    @property
    def records(self) -> int:
        """The number of records read."""
        return self._log.records

    @property
    def judged(self) -> int:
        """The number of output records compared with the model."""
        return self._state.matching.compared - self._compared_before

    @property
    def undeclared(self) -> str:
        """See `Matching.undeclared`."""
        return self._state.matching.undeclared()

    @property
    def topic_ids(self) -> dict[str, str]:
        """The topic id of each topic."""
        return {name: topic.topic_id for name, topic in self._log.topics.items()}

    def gone(self) -> str:
        """Return the name of a topic deleted or recreated since the start; else "". Raises `CannotTell`."""
        return self._log.gone()

    def compacted(self) -> list[str]:
        """Return the inputs with compaction, where Kafka may have deleted records in the middle. Raises `CannotTell`."""
        return self._log.compacted(self._work.reads)

    def _start(self, registry: SchemasById | None, kept: Checkpoints | None) -> None:
        work, ids = self._work, self.topic_ids
        reads = {topic: ids[topic] for topic in work.reads}
        receipts = self._kafka.receipts(self._client, owner_of(work, self._log), reads)
        self._state = begin(work, self._log, registry, receipts)
        self._proved = Proved(kept, work, registry, self._log)
        positions = self._log.positions
        if (found := self._proved.find(receipts)) is not None:
            positions, self._state = found[0].positions, found[1]
        self._read_before, self._compared_before = self._state.read, self._state.matching.compared
        if self._state.order is not None:
            self._state.order.go_on(self._apply, stops=True)
        self._owed = Owed(work, self._state.oracle.expected.fed)
        check_beginnings(self._log, work, positions)
        self._log.go_on(positions | read_progress(self._state, work, self._log, self._kafka, self._client))

    def begin(self) -> None:
        """Read the existing records, up to the progress of the processor. Raises `CannotTell`."""
        state = self._state
        reached, self.began_at = dict(self._state.reached), self._ends_of_written()
        counted = state.counted()
        if ahead := state.matching.beyond(reached) or state.outputs.beyond(reached):
            raise CannotTell(
                Code.PROGRESS_UNKNOWN,
                f"the processor does not say that it has taken {ahead}, of which there are results",
            )
        later: list[ReadRecord] = []
        late: set[tuple[Place, Place]] = set()

        def take(record: ReadRecord) -> None:
            source = source_of(record.header(SOURCE_HEADER)) if record.topic in self._state.outputs.records else None
            place = record.topic, record.partition
            if place in self._waiting:
                (self._feed if record.offset < reached.get(place, 0) else self._take)(record)
            elif source is not None and (
                source.offset >= reached.get(source[:2], 0) or (place, source[:2]) in late
            ):  # records behind a deferred record keep their order
                late.add((place, source[:2]))
                later.append(record)
            else:
                self._take(record)

        ends = {**{place: reached.get(place, 0) for place in self._reads}, **self.began_at}
        read_evenly(self._log, self._work, state.matching, ends, take, self._alive)
        self._applied, self._is_applied = reached, True
        expected = state.oracle.settled()
        self._pass_over(counted)
        self._letters = [*expected.dead.keys() | state.outputs.letters()]
        self._judge_letters()
        self.versions = Versions(self._work, expected.model.rows, state.outputs.last)
        state.matching.versions, state.matching.judged = self.versions.wrote, self.versions.judge
        self._find_missing(ends_whole=True)
        for record in later:
            self._take(record)

    def step(self) -> bool:
        """Read present records and compare complete results, up to the limits of a step. Return whether nothing is left. Raises
        `CannotTell`.
        """
        asked_at, positions, stable = time.monotonic(), self._log.positions, self._log.stable_ends()
        held = self._waiting if self._paused else ()
        readable = {place: end for place, end in stable.items() if place not in held}
        near = {place: min(end, positions[place] + self._pace.step_offsets) for place, end in readable.items()}
        self._log.read(near, self._take)
        if all(positions[place] >= end for place, end in readable.items() if place[0] == self._topics.changelog):
            self._told_at = asked_at
        gate, taken = self._gate or self._next_gate(), True
        # Inputs without results leave little to read in the outputs, so the progress may be far ahead of the inputs read.
        reached = {place: min(until, positions[place]) for place, until in gate.reached.items()}
        unread = gate.unread(positions)
        if not unread:
            self.is_whole = False
            counted = gate.counted if reached == gate.reached else None
            taken = self._take_inputs(reached, time.monotonic() + self._pace.step_s, counted)
            self.is_whole = True
        if not unread and taken:
            if gate.is_reached(positions):
                self._compared_at = gate.as_of
            gate = self._next_gate()
        elif any(positions[place] < stable[place] for place in unread):
            gate = gate._replace(since=time.monotonic())  # no open transaction: there is more to read
        self._gate = gate
        waiting = self.waiting > _WAITING_MAX
        if waiting != self._paused:
            self._paused = waiting
            self._log.hold(self._reads, waiting)
        return taken and near == readable

    def read_to(self, ends: Offsets) -> None:
        """Read these outputs up to the offsets of the ledger. Raises `CannotTell`."""
        self._log.read(ends, self._take)

    def high_ends(self) -> Offsets:
        """Return the ends of the topics of tables, including open transactions."""
        return {place: end for place, end in self._ends_of_written().items() if place[0] in self._tables}

    def land(self, ledger: Offsets) -> None:
        """Move the expected rows to these offsets of the ledger, which never decrease."""
        self.versions.land(ledger)

    def follow_made(self, store: ObjectReader) -> Callable[[], Iterable[Finding]]:
        """Return a function that lists the mismatches of objects reported since its last call."""
        return cast(Making, self._state.oracle.expected.model).follow_made(store)

    def held(self, seconds: float) -> str:
        """Return which open transaction has blocked the outputs for at least `seconds`, in one sentence; or ""."""
        return self._gate.held(self._log.positions, seconds) if self._gate is not None else ""

    @property
    def behind_s(self) -> float:
        """Everything that the processor had written this many seconds ago has been compared."""
        return time.monotonic() - self._compared_at

    @property
    def waiting(self) -> int:
        """The number of input records without complete results."""
        return sum(map(len, self._waiting.values()))

    @property
    def positions(self) -> Offsets:
        """The offset up to which each partition was read."""
        return self._log.positions

    @property
    def counts(self) -> dict[str, int]:
        """The counts, as in a verdict."""
        counts = self._state.oracle.expected.counts
        return {"records": counts.records, **counts.as_stored()}

    @property
    def leaves(self) -> bool:
        """Whether the state is complete for a checkpoint now."""
        return self._leaves and self._is_applied

    def leave(self) -> str:
        """Save a checkpoint. Return why saving failed, or "". Raises `CannotTell`."""
        state = self._state
        if self._kafka.receipts(self._client, state.oracle.owner, self.topic_ids) != state.replays.receipts:
            return (
                "dead letters were replayed or dropped since this continuous verifier started: only the next one can save its "
                "checkpoint"
            )
        positions = self._log.positions | {place: self._applied.get(place, 0) for place in self._reads}
        self._state.read = self._read_before + self.records - self.waiting
        return self._proved.keep(self._state, positions)

    def close(self) -> None:
        """Let go of the broker."""
        self._log.close()

    def _next_gate(self) -> Gate:
        ends = self._owed.open(self._log.high_ends)
        known = {place: end for place, end in self._state.reached.items() if place not in self._beyond}  # named once
        for beyond in beyond_progress(known, ends):
            self.findings.append(beyond)
            self._beyond.add((beyond.key["topic"], beyond.key["partition"]))
        written = {place: ends[place] for place in self._written}
        return Gate(dict(self._state.reached), self._state.counted(), written, self._told_at, time.monotonic())

    def _ends_of_written(self) -> Offsets:
        ends = self._log.high_ends()
        return {place: ends[place] for place in self._written}

    def _take(self, record: ReadRecord) -> None:
        topic = record.topic
        if (waiting := self._waiting.get((topic, record.partition))) is not None:
            waiting.append(record)
        elif topic == self._topics.changelog:
            self._state.take_progress(record, self._work, self._log)
        else:
            if topic.endswith(".dead") and (source := source_of(record.header(SOURCE_HEADER))) is not None:
                self._letters.append(source)
            self._state.take_written(record, self._topics)
            self._collect()

    def _take_inputs(self, reached: Offsets, deadline: float, counted: Counter[str] | None) -> bool:
        """Give the model the inputs up to `reached`, and compare the results. Return False if inputs are left.

        Args:
            deadline: the end in monotonic seconds; at least one record is taken.
            counted: the processor's counts up to `reached`; None: `reached` may lie within a transaction.
        """
        self._is_applied = False
        for place, waiting in self._waiting.items():
            until = reached.get(place, 0)
            while waiting and waiting[0].offset < until:
                self._feed(waiting.popleft())
                if waiting and time.monotonic() > deadline:
                    self._applied[place] = min(until, waiting[0].offset)
                    return False
        for place, until in reached.items():
            self._applied[place] = until
        if counted is not None:
            self._pass_over(counted)
        self._find_missing(ends_whole=counted is not None)
        self._judge_letters()
        self.findings += self._owed.judge(self._taken)
        self._is_applied = True
        return True

    def _feed(self, record: ReadRecord) -> None:
        if not self._state.oracle.owner.is_of_another(record):
            (self._state.order.feed if self._state.order else self._apply)(record)

    def _pass_over(self, counted: Counter[str]) -> None:
        """Name inputs that the processor passed over, and counts that differ from the model's; or report inputs processed
        without a recorded order.
        """
        counts = self._state.oracle.expected.counts
        if (order := self._state.order) is not None:
            self.findings += order.pass_over(counted.total() - sum(counts.as_stored().values()))
            self.unordered = order.unordered()
        off = {name: wanted - counted[name] for name, wanted in counts.as_stored().items()}
        # The processor's counts include inputs that it no longer reads.
        of_all = all("counts" in one and "former_inputs" not in one for one in self._state.progresses.values())
        if of_all and not self.unordered and off != self._off:
            self._off = off
            if any(off.values()) and not self._log.compacted(self._work.reads):
                self.findings += self._state.wrong_counts(counted, self._topics.changelog)

    @property
    def _taken(self) -> Offsets:
        """The offsets up to which the model has taken the inputs, without inputs of unknown order."""
        held = self._state.order.held() if self._state.order else {}
        return {place: min(until, held.get(place, until)) for place, until in self._applied.items()}

    def _find_missing(self, *, ends_whole: bool) -> None:
        """Name the mismatches known after the inputs were taken and their results were read."""
        matching, applied = self._state.matching, self._taken
        matching.before(applied)
        self._collect()
        if ends_whole:  # else the output record of a row may name a later input of the same transaction
            self.findings += [*matching.missing(applied), *self._state.unwritten(self._log)]
            matching.forget(applied)
        self.findings += [*matching.take_doubtful(), *matching.misplaced()]
        self.findings += self._state.oracle.expected.fed.misplaced()

    def _collect(self) -> None:
        for found in (self._state.outputs.findings, self._state.matching.findings):
            if found:
                self.findings += found
                found.clear()

    def _apply(self, record: ReadRecord) -> None:
        fate, mistimed = self._state.oracle.feed(record), self._state.oracle.expected.mistimed
        if mistimed:
            self.findings += mistimed
            mistimed.clear()
        if fate == Fate.DEAD:
            self._letters.append(Source(record.topic, record.partition, record.offset))
        self._collect()

    def _judge_letters(self) -> None:
        """Compare the dead letters of the inputs taken; the rest waits."""
        taken = self._taken
        known = {source for source in self._letters if source.offset < taken.get(source[:2], 0)}
        self._letters = [source for source in self._letters if source not in known]
        for source in sorted(known):
            self.findings += self._state.outputs.judge_letter(source, self._state.oracle.expected)
