"""A pipeline of real handlers on a simulated log, whose records the continuous verifier compares with the model."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from onefold.processor.core.topology import Topology
from onefold.processor.testing import TopologyDriver
from onefold.verify.audit.log_follower import Following
from onefold.verify.audit.pace import PACE, Pace
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.expect import Workload
from onefold.verify.kafka import Kafka
from onefold.verify.log import Place
from onefold.verify.record import ReadRecord
from onefold.verify.state import begin, read_evenly, read_progress, topics_of
from onefold.verify.verdict import Finding
from onefold.workloads.shaping import Input
from tests.support.simulated_stage import JudgesLog, kafka_of

PARTITIONS = 2
_STEPS_MAX = 50


class Followed:
    """A pipeline, and the results of verifiers.

    Attributes:
        driver: runs the handlers.
        hidden: records, by topic, partition and offset, that the verifier never sees.
        following: the continuous verifier, after `begin`.
    """

    def __init__(self, topology: Topology, workload: Workload, contracts: Path | None = None) -> None:
        self.driver = TopologyDriver(topology, partitions=PARTITIONS, contracts=contracts)
        self.workload = workload
        self.hidden: set[tuple[str, int, int]] = set()
        self.following: Following

    def send(self, inputs: Iterable[Input]) -> None:
        """Send inputs, and process them."""
        for given in inputs:
            self.driver.send(given.topic, given.value, key=given.key)
        self.driver.run()

    def begin(self, checkpoints: Path | None = None, pace: Pace = PACE) -> None:
        """Start the continuous verifier, which also verifies existing records."""
        kept = Checkpoints(checkpoints, self.workload.name) if checkpoints else None
        self.following = Following(self.workload, {}, None, kept, kafka=self.kafka(), pace=pace)
        self.following.begin()

    def verified(self) -> list[Finding]:
        """Mismatches that `verify` finds in the output records."""
        work, kafka, topics = self.workload, self.kafka(), topics_of(self.workload)
        log = kafka.log({}, topics.all)
        state = begin(work, log, None, {})
        order = state.order
        if order is not None:
            order.go_on(state.oracle.feed, stops=False)

        def take(record: ReadRecord) -> None:
            if record.topic not in work.reads:
                if record.topic != topics.changelog:
                    state.take_written(record, topics)
            elif not state.oracle.owner.is_of_another(record):
                (order.feed if order else state.oracle.feed)(record)

        ends, progress = log.stable_ends(), read_progress(state, work, log, kafka, {})
        log.go_on(log.positions | progress)
        read_evenly(log, work, state.matching, ends | progress, take)
        state.oracle.settled()
        return [*state.outputs.findings, *state.matching.findings, *state.unwritten(log), *state.matching.left()]

    def kafka(self) -> Kafka:
        """The log as the verifier sees it."""
        hidden = self.hidden

        class Seen(JudgesLog):
            def read(
                self,
                ends: dict[Place, int],
                take: Callable[[ReadRecord], None],
                alive: Callable[[], object] = lambda: None,
            ) -> None:
                super().read(ends, lambda record: None if record[:3] in hidden else take(record), alive)

        return kafka_of(self.driver.log, Seen)

    def found(self) -> list[Finding]:
        """Mismatches after all records were read and compared."""
        following, ends = self.following, self.ends(*self.following.topic_ids)
        # The verifier reads the processor's last progress after the results, and reports missing records only when all are
        # read.
        beyond = 0
        for _ in range(_STEPS_MAX):
            beyond = beyond + 1 if following.step() and not following.waiting else 0
            if beyond == 3:
                break
        assert beyond == 3, f"{following.waiting} records wait"
        assert all(following.positions[place] >= end for place, end in ends.items())
        found, following.findings = following.findings, []
        return found

    def ends(self, *topics: str) -> dict[Place, int]:
        """End offsets of these topics."""
        log = self.driver.log
        return {(topic, p): log.identity(topic, p).end for topic in topics for p in range(PARTITIONS)}

    def counted(self) -> dict[str, int]:
        """Counts of all tasks, by the tasks' own progress records."""
        changelog, counts = self.driver.topology.changelog, Counter[str]()
        for partition in range(PARTITIONS):
            told = [entry.value for _, entry in self.driver.log.read(changelog, partition, 0)[0] if entry.key == b"p"]
            counts.update(json.loads(told[-1] or b"{}").get("counts", {}) if told else {})
        return dict(counts)

    def last(self, topic: str) -> ReadRecord:
        """Newest record of the topic's fullest partition."""
        both = [(p, self.driver.log.read(topic, p, 0)[0]) for p in range(PARTITIONS)]
        partition, entries = max(both, key=lambda one: len(one[1]))
        offset, entry = entries[-1]
        return ReadRecord(topic, partition, offset, entry.key, entry.value, list(entry.headers), entry.timestamp_ms)

    def append(self, record: ReadRecord) -> str:
        """Append a record to its topic and partition; returns the place of the copy."""
        topic, partition = record.topic, record.partition
        offset = self.driver.log.append(
            topic,
            record.key,
            record.value,
            partition=partition,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms or 0,
        )
        return f"{topic}/{partition}/{offset}"
