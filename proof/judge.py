"""The judge of one domain: reads what is in the log, waits until the pipeline has drained, and compares.

It is asked by `verify`. Of a large log several judges each read a share, in processes of their own (`shares`): the partitions
with these numbers, of every topic. What the partitions have to do with one another is judged by one of them.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from onefold.error_codes import Code
from onefold.proof.checkpoints import Checkpoint, Checkpoints, digest_of, environment_of, fingerprint, now
from onefold.proof.contracts import contracts
from onefold.proof.expect import Expected, Oracle
from onefold.proof.invariants import invariants
from onefold.proof.kafka import KAFKA, Kafka
from onefold.proof.log import Place, read_last
from onefold.proof.models import Making
from onefold.proof.objects import open_store
from onefold.proof.order import Order
from onefold.proof.outputs import Outputs, judge_copies
from onefold.proof.owner import Owner
from onefold.proof.parts import Part, shares, without_rows
from onefold.proof.placement import ALL, Share
from onefold.proof.record import Record
from onefold.proof.registry import Registry
from onefold.proof.replays import Replays
from onefold.proof.tables import Comparison, Snapshot
from onefold.proof.verdict import (
    INVALID,
    UNKNOWN,
    CannotTell,
    Check,
    Finding,
    Verdict,
    beyond_ledger,
    beyond_progress,
    decide,
    doubted,
)
from onefold.proof.workloads import workload

#: Called with what is being done, and how many records were read so far.
Progress = Callable[[str, int], None]

# Between two checks of a pipeline that has not drained.
CHECK_AGAIN_S = 0.1


class Judge:
    """Judges a domain, or a share of it. Close it after use; everything here may raise `CannotTell`.

    Args:
        domain: such as `runner`.
        client: librdkafka settings that reach the broker.
        dsn: of the database.
        progress: called with what is going on.
        schema_registry_url: where to look up the schemas of inputs in the Confluent wire format; None: nowhere.
        objects: where the object store is, and its server, for domains whose workers make objects; "": there is none.
        share: the partitions to read.
        kafka: how the log is read.
    """

    def __init__(
        self,
        domain: str,
        client: dict[str, Any],
        dsn: str,
        progress: Progress,
        schema_registry_url: str | None = None,
        objects: tuple[str, str | None] = ("", None),
        share: Share = ALL,
        kafka: Kafka = KAFKA,
    ) -> None:
        self._client = client
        self._kafka = kafka
        self._share = share
        self._work = workload(domain)
        self._inputs = frozenset(self._work.reads)
        self._dsn = dsn
        self._store = open_store(*objects) if self._work.made else None
        self._progress = progress
        reads = self._work.reads
        self._changelog = f"{domain}.changelog"
        several = len(reads) > 1
        self._order_topic = f"{domain}.order" if several else ""
        others = [*(f"{topic}.dead" for topic in reads), self._changelog, *([self._order_topic] if several else [])]
        with Snapshot(dsn) as snapshot:
            snapshot.ledger(self._work.name)  # before hours of reading: it may be of a decision log
        self._log = kafka.log(client, [*reads, *self._work.outputs, *self._work.queues, *others], share)
        owner = Owner(self._log.cluster_id, domain, self._log.topics[self._changelog].topic_id)
        self._outputs = Outputs(self._work, owner)
        registry = Registry(schema_registry_url) if schema_registry_url else None
        topic_ids = {topic: self._log.topics[topic].topic_id for topic in reads}
        self._ask_receipts = partial(kafka.receipts, client, domain, topic_ids)
        self._replays = Replays(self._ask_receipts(), owner)
        self._oracle = Oracle(self._work, self._log.topics[reads[0]].partitions, registry, owner)
        self._oracle.withdrawn = self._replays.withdrawn
        self._order = Order(reads, self._oracle.feed) if several else None
        self._progresses: dict[int, dict[str, Any]] = {}
        self._read = 0
        self._has_begun = False
        # What the state below uses and does not consist of.
        self._environment = environment_of(self._work, contracts(domain)) | {"judge": self}
        if registry is not None:
            self._environment["registry"] = registry
        # Without a registry, its records are dead letters: what was judged with one is not gone on from without, and back.
        self._fingerprint = fingerprint(self._work, with_registry=registry is not None)

    def go_on(self, kept: Checkpoints, verdict: Verdict) -> None:
        """Go on from the newest checkpoint that holds for this judge, these topics and this log; if none does, stay at the
        beginning.
        """
        judge = self._fingerprint, self._topic_ids()
        starts = {place: start for place, start in self._log.starts().items() if place[0] != self._changelog}
        found = kept.holding(judge, self._replays.receipts, starts, self._log.stable_ends(), self._environment)
        if found is not None:
            checkpoint, state = found
            for name in _STATE:
                setattr(self, name, state[name])
            if self._order is not None:
                self._order.go_on(self._oracle.feed, stops=False)
            self._log.go_on(checkpoint.positions)
            self._has_begun = True
            verdict.proved, verdict.proved_at = checkpoint.records, checkpoint.made_at

    def keep(self, kept: Checkpoints) -> str:
        """Keep what was proved; says why it could not, or ""."""
        checkpoint = Checkpoint(
            self._fingerprint,
            self._topic_ids(),
            self._log.positions,
            digest_of(self._replays.receipts),
            self._read,
            now(),
        )
        return kept.keep(checkpoint, {name: getattr(self, name) for name in _STATE}, self._environment)

    def _topic_ids(self) -> dict[str, str]:
        return {name: topic.topic_id for name, topic in self._log.topics.items()}

    def close(self) -> None:
        """Let go of the broker."""
        self._log.close()

    def shares(self, most: int) -> int:
        """How many shares the topics are divided into, so many at most; 1 where they cannot be divided."""
        # What a registry answers may change between two who ask.
        if self._replays.receipts or "registry" in self._environment:
            return 1
        return shares(self._work, [topic.partitions for topic in self._log.topics.values()], most)

    def run(self, verdict: Verdict, timeout_s: float) -> None:
        """Fill in the verdict; raises `CannotTell`."""
        self.check_beginnings()
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
                    return
            self._progress(holdup or "input is still arriving", self._read)
            time.sleep(CHECK_AGAIN_S)

    def is_apart(self) -> bool:
        """Do all outputs of this share name inputs of it, too, as far as it was read?"""
        return self._outputs.are_of(self._share)

    def ends(self) -> dict[Place, int]:
        """The offset up to which each partition can be read now."""
        return self._log.stable_ends()

    def read(self, ends: dict[Place, int]) -> None:
        """Take everything before these offsets that was not taken before; those of other shares are none of this one's."""
        if not self._has_begun:
            self._begin(ends)
        self._log.read({place: ends[place] for place in self._log.places}, self._take)

    def _begin(self, ends: dict[Place, int]) -> None:
        """Of the changelog the last word of each task is all that counts. The states before it are as many as all inputs."""
        last = {place: ends[place] for place in self._log.places if place[0] == self._changelog}
        known = self._progresses.__contains__
        read_last(self._kafka.log, self._client, self._changelog, self._share, last, self._take_progress, known)
        self._log.go_on(self._log.positions | last)
        self._has_begun = True

    def check_beginnings(self) -> None:
        """Is the log there from where this judge reads?"""
        self._log.check_partitions((*self._work.reads, self._changelog))
        for (topic, partition), start in self._log.starts().items():
            if start > self._log.positions[topic, partition] and topic != self._changelog:
                raise CannotTell(
                    Code.RECORDS_DELETED,
                    f"{topic}/{partition} starts at offset {start}: what was before is gone from the log",
                )

    def _take(self, record: Record) -> None:
        self._read += 1
        if self._read % 10_000 == 0:
            self._progress("reading the topics", self._read)
        if record.topic in self._inputs:
            if not self._oracle.owner.is_of_another(record):
                self._order.feed(record) if self._order else self._oracle.feed(record)
        elif record.topic == self._changelog:
            self._take_progress(record)
        else:
            self._take_written(record)

    def _take_progress(self, record: Record) -> None:
        if record.key == b"p":
            found = self._progresses[record.partition] = json.loads(record.value or b"{}")
            self._log.check_states(self._work.name, found, self._work.reads[0])

    def _take_written(self, record: Record) -> None:
        """What the processor has written, wherever it lies. Copies are judged where they arrive, among the inputs."""
        if record.topic in self._outputs.records:
            self._outputs.feed(record)
        elif record.topic == self._order_topic and self._order:
            self._order.add(record)
        elif record.topic in self._work.queues:
            self._oracle.take_job(record)

    def holdup(self, ends: dict[Place, int]) -> str:
        """What has not drained yet, in one sentence; nothing when all has."""
        return self._undrained(ends) or (self._unordered() if self._order else "")

    def _undrained(self, ends: dict[Place, int]) -> str:
        # Asked in this order, records that arrive between the two answers do not pass for an open transaction.
        high, stable = self._log.high_ends(), self._log.stable_ends()
        for topic, partition in self._log.places:
            if high[topic, partition] > stable[topic, partition]:
                return f"a transaction is open on {topic}/{partition}, from offset {stable[topic, partition]} on"
        for topic in self._work.reads:
            for partition in self._share.of(self._log.topics[topic].partitions):
                at = self._progresses.get(partition, {}).get("inputs", {}).get(topic, {})
                if at and at["topic_id"] != self._log.topics[topic].topic_id:
                    raise CannotTell(
                        Code.TOPIC_RECREATED,
                        f"the processor has read another topic {topic}, which has been recreated since",
                    )
                if at.get("next_offset", 0) < ends[topic, partition]:
                    done = at.get("next_offset", 0)
                    return f"the processor has read {topic}/{partition} up to {done} of {ends[topic, partition]}"
        return self._unlanded(ends) or self._unmade()

    def _unordered(self) -> str:
        """Records that were processed in an order that nobody wrote down, as by a version of the pipeline with one input. The
        processor has counted them, and has not counted what it passed over.
        """
        assert self._order is not None
        counted, known = sum(self._counted().values()), sum(self._oracle.expected.counts.as_stored().values())
        return self._order.left_over(passed_over=counted <= known)

    def _unmade(self) -> str:
        """What a worker has still to make."""
        return cast(Making, self._oracle.expected.model).unmade() if self._store is not None else ""

    def _unlanded(self, ends: dict[Place, int]) -> str:
        with Snapshot(self._dsn) as snapshot:
            ledger = snapshot.ledger(self._work.name)
        for topic in self._work.outputs:
            for partition in self._share.of(self._log.topics[topic].partitions):
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
        self._progress("comparing", self._read)
        expected = self._oracle.settled()
        with Snapshot(self._dsn) as snapshot:
            comparison = Comparison(self._work, snapshot, expected, self._outputs.last)
            findings = [*comparison.findings(), *self._beyond(snapshot)]
            findings += self.conclude(verdict, snapshot, comparison.checks, expected, self._outputs, self._counted())
        findings += self._replays.findings()
        if self._store is not None:
            checks, wrong = cast(Making, expected.model).judge_made(self._store)
            verdict.checks += checks
            findings += wrong
        return findings

    def _skipped(self, *, drained: bool) -> list[Finding]:
        return self._order.findings(drained=drained) if self._order else []

    def _beyond(self, snapshot: Snapshot) -> list[Finding]:
        """Where sink or processor claim more than there is. Asked afterwards, the topics end nowhere before."""
        landed = {place: offset for place, (offset, _) in snapshot.ledger(self._work.name).items()}
        read = {
            (topic, partition): int(at["next_offset"])
            for partition, progress in self._progresses.items()
            for topic, at in progress.get("inputs", {}).items()
        }
        ends = self._log.high_ends()
        return [*beyond_ledger(landed, ends), *beyond_progress(read, ends)]

    def conclude(
        self,
        verdict: Verdict,
        snapshot: Snapshot,
        checks: list[Check],
        expected: Expected,
        outputs: Outputs,
        counted: Mapping[str, int],
    ) -> list[Finding]:
        """What is wrong beside the tables, over all partitions; and the checks and counts of the verdict.

        Args:
            checks: of the tables.
            counted: what the processor has counted, by fate.
        """
        rules = invariants(self._work.name)
        unkept = list(snapshot.invariants(rules))
        findings = [*snapshot.rejected(self._work.name), *unkept, *outputs.judge(expected), *judge_copies(expected)]
        findings += [*expected.fed.findings(), *expected.mistimed, *self._judge_counts(expected, counted)]
        if self._ask_receipts() != self._replays.receipts:
            raise CannotTell(Code.CHANGED_MEANWHILE, "dead letters were replayed while this was going on; ask again")
        letters = sum(outputs.records[f"{topic}.dead"] for topic in self._work.reads)
        copied = expected.counts.repartitioned - len(expected.uncopied) + len(expected.doubled())
        others = [*expected.fed.checks(), Check("dead letters", len(expected.dead), letters)]
        others.append(Check("repartitioned copies", expected.counts.repartitioned, copied))
        others += [
            Check(f"invariant {rule.name}", 0, sum(rule.name == found.where for found in unkept)) for rule in rules
        ]
        verdict.checks = checks + others
        verdict.counts = {"records": expected.counts.records, **expected.counts.as_stored()}
        return findings

    def part(self, snapshot: Snapshot) -> Part:
        """What this share has come to, now that all of it was read."""
        expected = self._oracle.settled()
        work = self._work
        single = [table for table in work.tables if not table.summed]
        names = {table.name for table in single}
        views = tuple(view for view in work.views if view.table in names)
        apart = replace(work, tables=tuple(single), views=views)
        comparison = Comparison(apart, snapshot, expected, self._outputs.last, share=self._share)
        findings = [
            *comparison.findings(),
            *self._beyond(snapshot),
            *self._replays.findings(),
            *self._skipped(drained=True),
        ]
        sums = {table.name: dict(expected.model.rows[table.name]) for table in work.tables if table.summed}
        right = not findings and self.is_apart()
        return Part(without_rows(expected), self._outputs.taken(), right, comparison.checks, sums, self._counted())

    def _counted(self) -> Counter[str]:
        """What the processor has counted for itself."""
        counted = Counter[str]()
        for progress in self._progresses.values():
            counted.update(progress.get("counts", {}))
        return counted

    def _judge_counts(self, expected: Expected, counted: Mapping[str, int]) -> list[Finding]:
        """The processor counts for itself how records ended; it must have counted the same."""
        findings = []
        for name, wanted in expected.counts.as_stored().items():
            found = counted.get(name, 0)
            if found != wanted:
                difference = {name: (wanted, found)}
                findings.append(Finding("wrong count", self._changelog, {}, difference, weight=abs(wanted - found)))
        return findings


# What the judge knows of the log; the rest of it is how it came to know that.
_STATE = ("_oracle", "_outputs", "_order", "_replays", "_progresses", "_read")


def by_topic(ends: dict[Place, int]) -> dict[str, dict[int, int]]:
    """Offsets as a verdict has them."""
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), end in sorted(ends.items()):
        offsets.setdefault(topic, {})[partition] = end
    return offsets
