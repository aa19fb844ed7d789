"""What a verifier knows of the topics of a pipeline, how it comes to know it, and how it keeps it for the next one."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.verify.checkpoints import Checkpoint, Checkpoints, digest_of, environment_of, fingerprint, now
from onefold.verify.contracts import contracts
from onefold.verify.expect import Oracle, Workload
from onefold.verify.kafka import Kafka
from onefold.verify.log import Log, Place, read_last
from onefold.verify.matching import Matching
from onefold.verify.order import Order
from onefold.verify.outputs import Outputs
from onefold.verify.owner import Owner
from onefold.verify.record import Record
from onefold.verify.registry import Registry
from onefold.verify.replays import Receipts, Replays
from onefold.verify.verdict import CannotTell, Finding

# Offsets of each partition that are read before it is asked whether others are far behind.
_STEP = 10_000
# Rows whose change has no output record yet, or output records whose input was not read: no more of that side are read for now.
_WAITING_MAX = 200_000


class Topics(NamedTuple):
    """The names of a pipeline's topics.

    Attributes:
        changelog: has the progress of each task.
        order: says in which order several inputs were processed; None: there is one.
        all: what a checkpoint is of.
        written: where results are.
    """

    changelog: str
    order: str | None
    all: list[str]
    written: list[str]


def topics_of(work: Workload) -> Topics:
    """Those of a pipeline."""
    changelog = f"{work.name}.changelog"
    order = f"{work.name}.order" if len(work.reads) > 1 else None
    results = [*work.outputs, *(f"{topic}.dead" for topic in work.reads), *([order] if order else [])]
    written = [*results, *work.queues]
    return Topics(changelog, order, [*work.reads, *written, changelog], written)


@dataclass
class State:
    """What was taken of the topics of a pipeline.

    Attributes:
        oracle: the model, and what became of each input record.
        outputs: the last output record of each row, and the dead letters.
        matching: changes that wait for their output records, and output records that wait for their inputs.
        order: in which order several inputs were processed; None: there is one input.
        replays: the dead letters that were replayed or dropped.
        progresses: the last progress of each task.
        reached: by input and partition, what the processor reads next, as it says there.
        read: how many records were taken, from the beginning of the log.
    """

    oracle: Oracle
    outputs: Outputs
    matching: Matching
    order: Order | None
    replays: Replays
    progresses: dict[int, dict[str, Any]] = field(default_factory=dict)
    reached: dict[Place, int] = field(default_factory=dict)
    read: int = 0

    def take_written(self, record: Record, topics: Topics) -> None:
        """Take what the processor has written, wherever it lies. Copies are judged where they arrive, among the inputs."""
        if record.topic in self.outputs.records:
            self.outputs.feed(record)
        elif record.topic == topics.order:
            assert self.order is not None, "read only where there are several inputs"
            self.matching.commits.add(record.partition, record.offset, self.order.add(record))
        else:
            self.oracle.take_job(record)

    def take_progress(self, record: Record, work: Workload, log: Log) -> None:
        """Take a record of the changelog; of most it takes nothing. Raises `CannotTell`."""
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
        """As `Matching.unwritten`, without those that Kafka may have removed from a compacted topic."""
        found = [*self.matching.unwritten()]
        compacted = log.compacted({finding.where for finding in found}) if found else ()
        return [finding for finding in found if finding.where not in compacted]

    def counted(self) -> Counter[str]:
        """What the processor has counted for itself."""
        counted = Counter[str]()
        for progress in self.progresses.values():
            counted.update(progress.get("counts", {}))
        return counted

    def wrong_counts(self, counted: Mapping[str, int], changelog: str) -> list[Finding]:
        """The processor counts how records ended. Name where the model, which has taken the same records, has other counts."""
        found = []
        for name, wanted in self.oracle.expected.counts.as_stored().items():
            if (has := counted.get(name, 0)) != wanted:
                found.append(Finding("wrong count", changelog, {}, {name: (wanted, has)}, weight=abs(wanted - has)))
        return found


def owner_of(work: Workload, log: Log) -> Owner:
    """The pipeline on its cluster, in this life."""
    return Owner(log.cluster_id, work.name, log.topics[topics_of(work).changelog].topic_id)


def begin(work: Workload, log: Log, registry: Registry | None, receipts: Receipts) -> State:
    """Nothing was taken yet.

    Args:
        receipts: the dead letters that were replayed or dropped.
    """
    owner = owner_of(work, log)
    partitions = {name: topic.partitions for name, topic in log.topics.items()}
    oracle = Oracle(work, partitions[work.reads[0]], registry, owner, partitions)
    outputs, replays = Outputs(work, owner, partitions), Replays(receipts, owner)
    matching = Matching(work, partitions, oracle.expected.model, oracle.expected.fate)
    oracle.withdrawn, oracle.parked = replays.withdrawn, replays.parked
    oracle.changed, outputs.heard = matching.changed, matching.wrote
    order = Order(work.reads, oracle.feed) if len(work.reads) > 1 else None
    return State(oracle, outputs, matching, order, replays)


class Proved:
    """The checkpoints that a verifier goes on from and leaves.

    Args:
        kept: None: none are there, and none are left.
        log: all topics of the pipeline.
    """

    def __init__(self, kept: Checkpoints | None, work: Workload, registry: Registry | None, log: Log) -> None:
        self._kept = kept
        self._log = log
        self._changelog = topics_of(work).changelog
        # What a state uses and does not consist of.
        self._environment = environment_of(work, contracts(work.name))
        if registry is not None:
            self._environment["registry"] = registry
        # Without a registry, its records are dead letters: what was judged with one is not gone on from without, and back.
        ids = {name: topic.topic_id for name, topic in log.topics.items()}
        self._judge = fingerprint(work, with_registry=registry is not None), ids

    def find(self, receipts: Receipts) -> tuple[Checkpoint, State] | None:
        """The newest that holds for this verifier, these topics and this log, and its state.

        Args:
            receipts: the dead letters that were replayed or dropped.
        """
        if self._kept is None:
            return None
        starts = {place: start for place, start in self._log.starts().items() if place[0] != self._changelog}
        return self._kept.holding(self._judge, receipts, starts, self._log.stable_ends(), self._environment)

    def keep(self, state: State, positions: dict[Place, int]) -> str:
        """Keep a state. Returns why it could not be kept, or "".

        Args:
            positions: what is read next of each place; of an input what the oracle takes next.
        """
        if self._kept is None:
            return ""
        head = Checkpoint(*self._judge, positions, digest_of(state.replays.receipts), state.read, now())
        if (order := state.order) is None:
            return self._kept.keep(head, state, self._environment)
        take, order.take = order.take, state.oracle.feed  # whoever goes on takes the records itself
        try:
            return self._kept.keep(head, state, self._environment)
        finally:
            order.take = take


def check_beginnings(log: Log, work: Workload, positions: Mapping[Place, int]) -> None:
    """Raises `CannotTell` when the log begins behind these offsets, if tasks and inputs do not have the same partitions, and if
    this login may not ask which topics are compacted: it could not tell then what a missing record proves.
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


def read_progress(state: State, work: Workload, log: Log, kafka: Kafka, client: dict[str, Any]) -> dict[Place, int]:
    """Of the changelog, take the last progress of each task: the states before it are as many as all inputs. Returns what is read
    next of it. Raises `CannotTell`.
    """
    changelog = topics_of(work).changelog
    ends = {place: end for place, end in log.stable_ends().items() if place[0] == changelog}
    known = state.progresses.__contains__

    def take(record: Record) -> None:
        state.take_progress(record, work, log)

    read_last(kafka.log, client, changelog, ends, take, known)
    return ends


def read_evenly(
    log: Log,
    work: Workload,
    matching: Matching,
    ends: Mapping[Place, int],
    take: Callable[[Record], None],
    alive: Callable[[], object] = lambda: None,
) -> None:
    """Read up to these offsets, inputs and output records side by side, so that few of them wait for one another.

    Args:
        alive: called again and again while records come.
    """
    log.read({}, take)  # a consumer holds only what it has been assigned
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
