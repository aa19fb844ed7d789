"""Reads all topics of a pipeline as they grow, and judges each output record against the model as of its own source.

The model must not be further than the outputs: a row that changes twice would have lost the values that its first output
record should have. So input records wait. A transaction's progress is in the changelog with its results; who has read it, asks
where the topics end afterwards, and has read up to there, has all results of the input records before that progress. Then the
model takes these, one by one, and after each the output records that name it are compared with the model's rows.
What was there at the start is read as `verify` reads it: the model runs ahead, and of each row the last output record is known.
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

# Input records that may wait for their results, in memory: of a pipeline that stands still, no more are read.
_WAITING_MAX = 200_000

Offsets = dict[Place, int]


class Following:
    """Follows one domain. Close it after use.

    Args:
        alive: called again and again while it reads what is there at the start.
        kafka: how to ask Kafka.
        pace: how much one step reads and takes, so that tables are looked at in between.

    Attributes:
        versions: what rows must be; after `begin`.
        began_at: per place of what is written, what was there at the start lies before this offset.
        findings: what is wrong, as it is found; take them away.
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
        self._is_applied = False  # whether that is just what the model has taken
        #: False: something came in between while the model took a record, and what it knows is of no use.
        self.is_whole = True
        self._letters: list[Source] = []
        #: Why the model cannot take records that the processor has taken, in one sentence; or "".
        self.unordered = ""
        self._gate: Gate | None = None
        self.findings = list[Finding]()
        self._off: dict[str, int] = {}  # how many more records the model had counted than the processor, by their fate
        # The inputs of which the processor claims to have read more than there is.
        self._beyond = set[tuple[str, int]]()
        # When all was read that the processor had said of how far it is.
        self._told_at = self._compared_at = time.monotonic()
        # Of the others a verdict knows more than a continuous verifier, or it gives some of it away.
        self._leaves = kept is not None and not (workload.fed or workload.queues or workload.made)
        self._start(registry, kept)

    @property
    def records(self) -> int:
        """How many were read."""
        return self._log.records

    @property
    def judged(self) -> int:
        """How many output records were compared with the model."""
        return self._state.matching.compared - self._compared_before

    @property
    def undeclared(self) -> str:
        """See `Matching.undeclared`."""
        return self._state.matching.undeclared()

    @property
    def topic_ids(self) -> dict[str, str]:
        """Of every topic that is read."""
        return {name: topic.topic_id for name, topic in self._log.topics.items()}

    def gone(self) -> str:
        """The name of a topic that was deleted, or made anew, since; else "". Raises `CannotTell`."""
        return self._log.gone()

    def compacted(self) -> list[str]:
        """The inputs from whose middle Kafka may have deleted records. Raises `CannotTell`."""
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
        """Read what is there, up to where the processor is. Raises `CannotTell`."""
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
            ):  # what follows one that is too early is in its order
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
        """Read what there is now, and judge what is complete, or some of both. Returns whether that was all. Raises
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
        # Of inputs that change nothing there is little to read elsewhere: the progress may be far ahead of them.
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
            gate = gate._replace(since=time.monotonic())  # there is something to read: nobody holds it up
        self._gate = gate
        waiting = self.waiting > _WAITING_MAX
        if waiting != self._paused:
            self._paused = waiting
            self._log.hold(self._reads, waiting)
        return taken and near == readable

    def read_to(self, ends: Offsets) -> None:
        """Read these outputs up to there, as the tables have landed them. Raises `CannotTell`."""
        self._log.read(ends, self._take)

    def high_ends(self) -> Offsets:
        """Where the topics end that tables are filled from, open transactions included."""
        return {place: end for place, end in self._ends_of_written().items() if place[0] in self._tables}

    def land(self, ledger: Offsets) -> None:
        """The tables are as of these offsets now, of the topics that they are filled from; they never go back."""
        self.versions.land(ledger)

    def follow_made(self, store: ObjectReader) -> Callable[[], Iterable[Finding]]:
        """What says what is wrong with the objects that were reported since it was asked last."""
        return cast(Making, self._state.oracle.expected.model).follow_made(store)

    def held(self, seconds: float) -> str:
        """Where results have been waited for so long that were begun and are not committed, in one sentence; or ""."""
        return self._gate.held(self._log.positions, seconds) if self._gate is not None else ""

    @property
    def behind_s(self) -> float:
        """All that the processor had written so many seconds ago has been compared."""
        return time.monotonic() - self._compared_at

    @property
    def waiting(self) -> int:
        """How many input records wait for their results."""
        return sum(map(len, self._waiting.values()))

    @property
    def positions(self) -> Offsets:
        """Up to where everything was read."""
        return self._log.positions

    @property
    def counts(self) -> dict[str, int]:
        """As a verdict has them."""
        counts = self._state.oracle.expected.counts
        return {"records": counts.records, **counts.as_stored()}

    @property
    def leaves(self) -> bool:
        """Whether now is a moment to leave what was compared to the next judge."""
        return self._leaves and self._is_applied

    def leave(self) -> str:
        """Leave it. Returns why it could not be kept, or "". Raises `CannotTell`."""
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
        """The model takes what the processor had taken, and what was written is compared with it. False: not all of it yet.

        Args:
            deadline: until when, in monotonic seconds; one record is taken at least.
            counted: what the processor has counted up to `reached`; None: a transaction of it may have inputs before and behind.
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
        """Name inputs that the processor passed over, and counts that differ from the model's; or say which inputs it has
        processed in an order that it did not record.
        """
        counts = self._state.oracle.expected.counts
        if (order := self._state.order) is not None:
            self.findings += order.pass_over(counted.total() - sum(counts.as_stored().values()))
            self.unordered = order.unordered()
        off = {name: wanted - counted[name] for name, wanted in counts.as_stored().items()}
        # The processor goes on counting when it reads an input no more.
        of_all = all("counts" in one and "former_inputs" not in one for one in self._state.progresses.values())
        if of_all and not self.unordered and off != self._off:
            self._off = off
            if any(off.values()) and not self._log.compacted(self._work.reads):
                self.findings += self._state.wrong_counts(counted, self._topics.changelog)

    @property
    def _taken(self) -> Offsets:
        """Up to where the model has taken the inputs: not those of which the order is not known."""
        held = self._state.order.held() if self._state.order else {}
        return {place: min(until, held.get(place, until)) for place, until in self._applied.items()}

    def _find_missing(self, *, ends_whole: bool) -> None:
        """What is wrong now that inputs were taken, and everything that was written of them was read."""
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
        """Those of the input records that were taken; the others are asked for again."""
        taken = self._taken
        known = {source for source in self._letters if source.offset < taken.get(source[:2], 0)}
        self._letters = [source for source in self._letters if source not in known]
        for source in sorted(known):
            self.findings += self._state.outputs.judge_letter(source, self._state.oracle.expected)
