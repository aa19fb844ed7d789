"""The state of a verification: reading it from the topics of a pipeline, and saving it for the next verifier."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.verify.checkpoints import Checkpoints, VerifierCheckpoint, digest_of, environment_of, fingerprint, now
from onefold.verify.contracts import contracts
from onefold.verify.expect import Oracle, Workload
from onefold.verify.kafka import Kafka
from onefold.verify.log import Log, Place, read_last
from onefold.verify.matching import Matching
from onefold.verify.order import Order
from onefold.verify.outputs import Outputs
from onefold.verify.record import ReadRecord
from onefold.verify.registry import SchemasById
from onefold.verify.replays import Receipts, Replays
from onefold.verify.verdict import CannotTell, Finding
from onefold.verify.writer_identity import WriterIdentity

# The offsets of each partition to read before the next check for waiting records.
_STEP = 10_000
# The limit of rows with a change but no output record yet, and of input records named by output records but not taken yet.
# Beyond the limit, reading pauses on the side ahead.
_WAITING_MAX = 200_000


class TopicNames(NamedTuple):
    """The names of a pipeline's topics.

    Attributes:
        changelog: the topic with the progress of each task.
        order: the topic with the merge order of several inputs; None: one input.
        all: all topics of a checkpoint.
        written: the topics with results.
    """

    changelog: str
    order: str | None
    all: list[str]
    written: list[str]


def topics_of(work: Workload) -> TopicNames:
    """Return the topics of a pipeline."""
    changelog = f"{work.name}.changelog"
    order = f"{work.name}.order" if len(work.reads) > 1 else None
    results = [*work.outputs, *(f"{topic}.dead" for topic in work.reads), *([order] if order else [])]
    written = [*results, *work.queues]
    return TopicNames(changelog, order, [*work.reads, *written, changelog], written)


@dataclass
class TopicState:
    """The state after the records taken from the topics of a pipeline.

    Attributes:
        oracle: the model, and the fate of each input record.
        outputs: the last output record of each row, and the dead letters.
        matching: changes without an output record, and output records without an input record so far.
        order: the merge order of several inputs; None: one input.
        replays: the dead letters replayed or dropped.
        progresses: the last progress of each task.
        reached: by input partition, the next offset of the processor according to its progress.
        read: the number of records taken, from the beginning of the log.
    """

    oracle: Oracle
    outputs: Outputs
    matching: Matching
    order: Order | None
    replays: Replays
    progresses: dict[int, dict[str, Any]] = field(default_factory=dict)
    reached: dict[Place, int] = field(default_factory=dict)
    read: int = 0

    def take_written(self, record: ReadRecord, topics: TopicNames) -> None:
        """Take a record written by the processor. Copies are verified among the inputs."""
        if record.topic in self.outputs.records:
            self.outputs.feed(record)
        elif record.topic == topics.order:
            assert self.order is not None, "read only where there are several inputs"
            self.matching.commits.add(record.partition, record.offset, self.order.add(record))
        else:
            self.oracle.take_job(record)

    def take_progress(self, record: ReadRecord, work: Workload, log: Log) -> None:
        """Take a record of the changelog, if the record has progress. Raises `CannotTell`."""
        if record.key != b"p":
            return
        found: dict[str, Any] = json.loads(record.value or b"{}")
        self.progresses[record.partition] = found
        log.check_states(work.name, found, work.reads[0])
        inputs = {topic: at for topic, at in found.get("inputs", {}).items() if topic in log.topics}
        for topic, at in inputs.items():
            if at["topic_id"] != log.topics[topic].topic_id:
                raise CannotTell(
                    Code.TOPIC_RECREATED,
                    f"the processor has read another topic {topic}, which has been recreated since",
                )
            self.reached[topic, record.partition] = at["next_offset"]
        if self.order is None:
            ends = {topic: at["next_offset"] for topic, at in inputs.items()}
            self.matching.commits.add(record.partition, record.offset, ends)

    def unwritten(self, log: Log) -> list[Finding]:
        """Return `Matching.unwritten`, without records that Kafka may have removed from a compacted topic."""
        found = [*self.matching.unwritten()]
        compacted = log.compacted({finding.where for finding in found}) if found else ()
        return [finding for finding in found if finding.where not in compacted]

    def counted(self) -> Counter[str]:
        """Return the processor's own counts."""
        counted = Counter[str]()
        for progress in self.progresses.values():
            counted.update(progress.get("counts", {}))
        return counted

    def wrong_counts(self, counted: Mapping[str, int], changelog: str) -> list[Finding]:
        """Return differences between the processor's counts by fate and the model's counts of the same records."""
        found = []
        for name, wanted in self.oracle.expected.counts.as_stored().items():
            if (has := counted.get(name, 0)) != wanted:
                found.append(Finding("wrong count", changelog, {}, {name: (wanted, has)}, weight=abs(wanted - has)))
        return found


def owner_of(work: Workload, log: Log) -> WriterIdentity:
    """Return the identity of the pipeline on its cluster, since the last reset."""
    return WriterIdentity(log.cluster_id, work.name, log.topics[topics_of(work).changelog].topic_id)


def begin(work: Workload, log: Log, registry: SchemasById | None, receipts: Receipts) -> TopicState:
    """Return the state before any record.

    Args:
        receipts: the dead letters replayed or dropped.
    """
    owner = owner_of(work, log)
    partitions = {name: topic.partitions for name, topic in log.topics.items()}
    oracle = Oracle(work, partitions[work.reads[0]], registry, owner, partitions)
    outputs, replays = Outputs(work, owner, partitions), Replays(receipts, owner)
    matching = Matching(work, partitions, oracle.expected.model, oracle.expected.fate)
    oracle.withdrawn, oracle.parked = replays.withdrawn, replays.parked
    oracle.changed, outputs.heard = matching.changed, matching.wrote
    order = Order(work.reads, oracle.feed) if len(work.reads) > 1 else None
    return TopicState(oracle, outputs, matching, order, replays)


class Proved:
    """The checkpoints to continue from and to add to.

    Args:
        kept: the checkpoints; None: no checkpoints, neither to find nor to save.
        log: all topics of the pipeline.
    """

    def __init__(self, kept: Checkpoints | None, work: Workload, registry: SchemasById | None, log: Log) -> None:
        self._kept = kept
        self._log = log
        self._changelog = topics_of(work).changelog
        # Objects used by the state, but saved by name only.
        self._environment = environment_of(work, contracts(work.name))
        if registry is not None:
            self._environment["registry"] = registry
        # Without a registry, a record with a registered schema is a dead letter. So checkpoints with and without a registry
        # differ.
        ids = {name: topic.topic_id for name, topic in log.topics.items()}
        self._judge = fingerprint(work, with_registry=registry is not None), ids

    def find(self, receipts: Receipts) -> tuple[VerifierCheckpoint, TopicState] | None:
        """Return the newest valid checkpoint for this verifier, these topics and this log, and its state; or None.

        Args:
            receipts: the dead letters replayed or dropped.
        """
        if self._kept is None:
            return None
        starts = {place: start for place, start in self._log.starts().items() if place[0] != self._changelog}
        return self._kept.holding(self._judge, receipts, starts, self._log.stable_ends(), self._environment)

    def keep(self, state: TopicState, positions: dict[Place, int]) -> str:
        """Save a state. Return why saving failed, or "".

        Args:
            positions: by partition, the next offset to read; for an input, the next offset for the oracle.
        """
        if self._kept is None:
            return ""
        head = VerifierCheckpoint(*self._judge, positions, digest_of(state.replays.receipts), state.read, now())
        if (order := state.order) is None:
            return self._kept.keep(head, state, self._environment)
        take, order.take = order.take, state.oracle.feed  # the next verifier sets its own function
        try:
            return self._kept.keep(head, state, self._environment)
        finally:
            order.take = take


def check_beginnings(log: Log, work: Workload, positions: Mapping[Place, int]) -> None:
    """Check that the log has the records from these offsets on, and that inputs and changelog have the same number of
    partitions. Check also the right to read compaction settings, because a missing record in a compacted topic proves nothing.
    Raises `CannotTell`.
    """
    changelog = topics_of(work).changelog
    log.compacted([*work.reads, *work.outputs])
    log.check_partitions((*work.reads, changelog))
    for (topic, partition), start in log.starts().items():
        if start > positions[topic, partition] and topic != changelog:
            raise CannotTell(
                Code.RECORDS_DELETED,
                f"{topic}/{partition} starts at offset {start}: what was before is gone from the log",
            )


def read_progress(
    state: TopicState, work: Workload, log: Log, kafka: Kafka, client: dict[str, Any]
) -> dict[Place, int]:
    """Take the last progress of each task from the changelog, without the many states before. Return the next offsets to read
    from the changelog. Raises `CannotTell`.
    """
    changelog = topics_of(work).changelog
    ends = {place: end for place, end in log.stable_ends().items() if place[0] == changelog}
    known = state.progresses.__contains__

    def take(record: ReadRecord) -> None:
        state.take_progress(record, work, log)

    read_last(kafka.log, client, changelog, ends, take, known)
    return ends


def read_evenly(
    log: Log,
    work: Workload,
    matching: Matching,
    ends: Mapping[Place, int],
    take: Callable[[ReadRecord], None],
    alive: Callable[[], object] = lambda: None,
) -> None:
    """Read up to these offsets, inputs and output records side by side, so that few records wait for their counterpart.

    Args:
        alive: called repeatedly while records come.
    """
    log.read({}, take)  # a consumer can pause only assigned partitions
    positions, held = log.positions, set[Place]()
    while behind := {place: end for place, end in ends.items() if positions[place] < end}:
        inputs = {place for place in behind if place[0] in work.reads}
        outputs = {place for place in behind if place[0] in work.outputs}
        wanted: set[Place] = set()
        if outputs and (matching.ahead > _WAITING_MAX or not matching.is_tracked):
            wanted = inputs
        elif inputs and matching.behind > _WAITING_MAX:
            wanted = outputs
        for places, hold in ((wanted - held, True), (held - wanted, False)):
            if places:
                log.hold(places, hold)
        held = wanted
        near = {place: min(end, positions[place] + _STEP) for place, end in behind.items() if place not in held}
        log.read(near, take, alive)
    if held:
        log.hold(held, False)
