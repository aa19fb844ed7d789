"""The verifier of one pipeline: reads the log, waits until the pipeline has drained, and compares."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from onefold.error_codes import Code
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.expect import Expected
from onefold.verify.invariants import invariants
from onefold.verify.kafka import KAFKA, Kafka
from onefold.verify.loading import workload
from onefold.verify.log import Place
from onefold.verify.models import Making
from onefold.verify.objects import open_store
from onefold.verify.outputs import judge_copies
from onefold.verify.record import ReadRecord
from onefold.verify.registry import SchemasById
from onefold.verify.snapshot import DatabaseSnapshot
from onefold.verify.state import Proved, begin, check_beginnings, owner_of, read_evenly, read_progress, topics_of
from onefold.verify.tables import Comparison
from onefold.verify.unjudged import unjudged
from onefold.verify.verdict import (
    INVALID,
    UNKNOWN,
    VALID,
    CannotTell,
    Check,
    Finding,
    Verdict,
    beyond_ledger,
    beyond_progress,
    decide,
    doubted,
)

#: Called with the present activity, and the number of records read.
Progress = Callable[[str, int], None]

# The interval between checks of a pipeline that has not drained.
CHECK_AGAIN_S = 0.1
# The verifier's objects stay alive or are in no cycle, so garbage collection at Python's default intervals wastes time.
_CYCLES = (100_000, 50, 100)


@contextmanager
def seldom() -> Iterator[None]:
    """Collect garbage rarely within the context."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*_CYCLES)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class Verifier:
    """Verifies a pipeline. Close after use. Every method may raise `CannotTell`.

    Args:
        domain: the pipeline, such as `runner`.
        client: librdkafka settings that reach the broker.
        dsn: of the database.
        progress: called with the present activity.
        schema_registry_url: the schema registry for inputs in the Confluent wire format; None: no registry.
        objects: the address and the server of the object store, for pipelines with objects; "": no store.
        kafka: how to read Kafka.
        kept: the checkpoints to continue from and to add to; None: no checkpoints.
    """

    def __init__(
        self,
        domain: str,
        client: dict[str, Any],
        dsn: str,
        progress: Progress,
        schema_registry_url: str | None = None,
        objects: tuple[str, str | None] = ("", None),
        kafka: Kafka = KAFKA,
        kept: Checkpoints | None = None,
    ) -> None:
        self._client = client
        self._kafka = kafka
        self._work = workload(domain)
        self._inputs = frozenset(self._work.reads)
        self._dsn = dsn
        self._store = open_store(*objects) if self._work.made else None
        self._progress = progress
        self._topics = topics = topics_of(self._work)
        with DatabaseSnapshot(dsn) as snapshot:
            snapshot.ledger(self._work.name)  # before hours of reading: the ledger may belong to a decision log
        self._log = kafka.log(client, topics.all)
        registry = SchemasById(schema_registry_url) if schema_registry_url else None
        topic_ids = {topic: self._log.topics[topic].topic_id for topic in self._work.reads}
        self._ask_receipts = partial(kafka.receipts, client, owner_of(self._work, self._log), topic_ids)
        self._state = begin(self._work, self._log, registry, self._ask_receipts())
        self._proved = Proved(kept, self._work, registry, self._log)
        self._has_begun = False

    def go_on(self, verdict: Verdict) -> None:
        """Continue from the newest valid checkpoint for this verifier, these topics and this log; without a valid checkpoint,
        stay at the beginning.
        """
        found = self._proved.find(self._state.replays.receipts)
        if found is not None:
            checkpoint, self._state = found
            if self._state.order is not None:
                self._state.order.go_on(self._state.oracle.feed, stops=False)
            self._log.go_on(checkpoint.positions)
            self._has_begun = True
            verdict.proved, verdict.proved_at = checkpoint.records, checkpoint.made_at

    def keep(self) -> str:
        """Save a checkpoint. Return why saving failed, or ""."""
        self._state.matching.forget(self._log.positions)
        return self._proved.keep(self._state, self._log.positions)

    def close(self) -> None:
        """Close the connection to the broker."""
        self._log.close()

    def run(self, verdict: Verdict, timeout_s: float) -> None:
        """Fill in the verdict; raises `CannotTell`."""
        check_beginnings(self._log, self._work, self._log.positions)
        changelog = self._topics.changelog
        verdict.begins = by_topic({at: start for at, start in self._log.positions.items() if at[0] != changelog})
        deadline: float | None = None
        while True:
            ends = self._log.stable_ends()
            self.read(ends)
            verdict.offsets = by_topic(ends)
            deadline = deadline or time.monotonic() + timeout_s
            late = time.monotonic() > deadline
            holdup = self.holdup(ends)
            if not holdup or late:
                findings = [*self._compare(verdict), *self._skipped(drained=not holdup)]
                still = self._log.stable_ends() == ends and not holdup
                if still or late or not (findings or holdup):
                    verdict.findings = findings
                    verdict.outcome, verdict.reason, verdict.code = decide(findings, holdup, still)
                    if verdict.outcome == INVALID and (
                        doubt := doubted(findings, self._log.compacted(self._work.reads))
                    ):
                        verdict.outcome, verdict.reason, verdict.code = UNKNOWN, doubt, str(Code.RECORDS_DELETED)
                    if verdict.outcome == VALID and (undeclared := self._state.matching.undeclared()):
                        verdict.outcome, verdict.reason, verdict.code = UNKNOWN, undeclared, str(Code.MODEL_WRONG)
                    return
            self._progress(holdup or "input is still arriving", self._state.read)
            time.sleep(CHECK_AGAIN_S)

    def read(self, ends: dict[Place, int]) -> None:
        """Take all records before these offsets that were not taken yet."""
        if not self._has_begun:
            progress = read_progress(self._state, self._work, self._log, self._kafka, self._client)
            self._log.go_on(self._log.positions | progress)
            ends = ends | progress
            self._has_begun = True
        read_evenly(self._log, self._work, self._state.matching, ends, self._take)

    def _take(self, record: ReadRecord) -> None:
        self._state.read += 1
        if self._state.read % 10_000 == 0:
            self._progress("reading the topics", self._state.read)
        if record.topic in self._inputs:
            if not self._state.oracle.owner.is_of_another(record):
                self._state.order.feed(record) if self._state.order else self._state.oracle.feed(record)
        elif record.topic == self._topics.changelog:
            self._state.take_progress(record, self._work, self._log)
        else:
            self._state.take_written(record, self._topics)

    def holdup(self, ends: dict[Place, int]) -> str:
        """Return what has not drained yet, in one sentence; "" after draining."""
        return self._undrained(ends) or (self._unordered() if self._state.order else "")

    def _undrained(self, ends: dict[Place, int]) -> str:
        # High watermarks first: a record that arrives in between must not look like an open transaction.
        high, stable = self._log.high_ends(), self._log.stable_ends()
        for topic, partition in self._log.places:
            if high[topic, partition] > stable[topic, partition]:
                return f"a transaction is open on {topic}/{partition}, from offset {stable[topic, partition]} on"
        for topic in self._work.reads:
            for partition in range(self._log.topics[topic].partitions):
                if (done := self._state.reached.get((topic, partition), 0)) < ends[topic, partition]:
                    return f"the processor has read {topic}/{partition} up to {done} of {ends[topic, partition]}"
        return self._unlanded(ends) or self._unmade()

    def _unordered(self) -> str:
        """Return a sentence about records processed without a recorded order, for example by an earlier version of the pipeline
        with one input. The processor has counted these records, but not the records it passed over.
        """
        order = self._state.order
        assert order is not None

        def uncounted() -> int:
            known = self._state.oracle.expected.counts.as_stored()
            return sum(self._state.counted().values()) - sum(known.values())

        order.begin(uncounted())
        return order.left_over(passed_over=uncounted() <= 0)

    def _unmade(self) -> str:
        """Return which object is still to be made by a worker, in one sentence."""
        return cast(Making, self._state.oracle.expected.model).unmade() if self._store is not None else ""

    def _unlanded(self, ends: dict[Place, int]) -> str:
        with DatabaseSnapshot(self._dsn) as snapshot:
            ledger = snapshot.ledger(self._work.name)
        for topic in self._work.outputs:
            for partition in range(self._log.topics[topic].partitions):
                landed, topic_id = ledger.get((topic, partition), (0, self._log.topics[topic].topic_id))
                if topic_id != self._log.topics[topic].topic_id:
                    raise CannotTell(
                        Code.TOPIC_RECREATED,
                        f"the sink has written another topic {topic}, which has been recreated since",
                    )
                if landed < ends[topic, partition]:
                    return f"the sink has written {topic}/{partition} up to {landed} of {ends[topic, partition]}"
        return ""

    def _compare(self, verdict: Verdict) -> list[Finding]:
        self._progress("comparing", self._state.read)
        expected = self._state.oracle.settled()
        with DatabaseSnapshot(self._dsn) as snapshot:
            comparison = Comparison(self._work, snapshot, expected, self._state.outputs.last)
            findings = [*comparison.findings(), *self._beyond(snapshot)]
            findings += self._conclude(verdict, snapshot, comparison.checks, expected)
        findings += self._state.replays.findings()
        if self._store is not None:
            checks, wrong = cast(Making, expected.model).judge_made(self._store)
            verdict.checks += checks
            findings += wrong
        return findings

    def _skipped(self, *, drained: bool) -> list[Finding]:
        return self._state.order.findings(drained=drained) if self._state.order else []

    def _beyond(self, snapshot: DatabaseSnapshot) -> list[Finding]:
        """Find ledger offsets or progress beyond the end of a topic. The ends are read last, so no end is too early."""
        landed = {place: offset for place, (offset, _) in snapshot.ledger(self._work.name).items()}
        ends = self._log.high_ends()
        return [*beyond_ledger(landed, ends), *beyond_progress(self._state.reached, ends)]

    def _conclude(
        self, verdict: Verdict, snapshot: DatabaseSnapshot, checks: list[Check], expected: Expected
    ) -> list[Finding]:
        """Return the mismatches outside of the tables, and fill in the checks and counts of the verdict."""
        outputs = self._state.outputs
        rules = invariants(self._work.name)
        unkept = list(snapshot.invariants(rules))
        findings = [*snapshot.rejected(self._work.name), *unkept, *outputs.judge(expected), *judge_copies(expected)]
        findings += [*self._state.matching.findings, *self._state.unwritten(self._log), *self._state.matching.left()]
        findings += [*expected.fed.findings(), *expected.mistimed]
        findings += self._state.wrong_counts(self._state.counted(), self._topics.changelog)
        if self._ask_receipts() != self._state.replays.receipts:
            raise CannotTell(
                Code.CHANGED_MEANWHILE, "dead letters were replayed or dropped while this was going on; ask again"
            )
        letters = sum(outputs.records[f"{topic}.dead"] for topic in self._work.reads)
        copied = expected.counts.repartitioned - len(expected.uncopied) + len(expected.doubled())
        others = [*expected.fed.checks(), Check("dead letters", len(expected.dead), letters)]
        others.append(Check("repartitioned copies", expected.counts.repartitioned, copied))
        others += [
            Check(f"invariant {rule.name}", 0, sum(rule.name == found.where for found in unkept)) for rule in rules
        ]
        verdict.checks = checks + others
        verdict.outputs = sum(outputs.records[topic] for topic in self._work.outputs)
        verdict.rows = sum(check.found for check in checks if check.what in expected.model.rows)
        verdict.not_judged = unjudged(self._work, snapshot)
        verdict.uncompared = self._state.matching.passed_over
        verdict.counts = {"records": expected.counts.records, **expected.counts.as_stored()}
        return findings


def by_topic(ends: dict[Place, int]) -> dict[str, dict[int, int]]:
    """Return offsets in the form of a verdict."""
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), end in sorted(ends.items()):
        offsets.setdefault(topic, {})[partition] = end
    return offsets
