"""Verify a domain: work out from the input log what must exist, and compare it with what does.

    1. Read inputs, outputs, dead letters and the processor's progress, from the beginning, or from where an earlier verdict
       has proved them (`checkpoints`), to the end (`log`).
    2. Wait, for a bounded time, until the pipeline has drained: the processor has read every input record, no
       transaction is open, and the sink has landed every output record.
    3. In one snapshot of the database compare every row, both ways (`tables`); compare outputs, dead letters and
       repartitioned copies (`outputs`).
       Where the tables are filled from a decision log, its decisions are what was written, whether somebody has published
       them already or not (`decided`); of the output topics what is there is judged when all of it is there.
    4. When nothing moved meanwhile, the verdict is what holds: valid or invalid. Else compare again.

Unknown, and never valid, is: what cannot be read whole, a log whose beginning is gone, a topic that was recreated,
an open transaction, a pipeline that does not drain, input that keeps coming while rows differ, and any error in here.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from onefold.proof.checkpoints import Checkpoint, Checkpoints, digest_of, environment_of, fingerprint, now
from onefold.proof.collecting import seldom
from onefold.proof.contracts import contracts
from onefold.proof.decided import Decided
from onefold.proof.expect import SOURCE_HEADER, Expected, Making, Oracle, Record
from onefold.proof.invariants import invariants
from onefold.proof.log import Log, Place
from onefold.proof.objects import open_store
from onefold.proof.order import Order
from onefold.proof.outputs import Outputs, judge_copies
from onefold.proof.registry import Registry
from onefold.proof.replays import Replays
from onefold.proof.replays import read as read_replays
from onefold.proof.tables import Comparison, Snapshot
from onefold.proof.verdict import INVALID, UNKNOWN, VALID, CannotTell, Check, Finding, Verdict
from onefold.proof.workloads import UnknownDomain, workload

#: Called with what is being done, and how many records were read so far.
Progress = Callable[[str, int], None]

# Between two checks of a pipeline that has not drained.
_CHECK_AGAIN_S = 0.1


@seldom()
def verify(
    domain: str,
    *,
    client: dict[str, Any],
    dsn: str,
    timeout_s: float = 60.0,
    progress: Progress = lambda what, records: None,
    schema_registry_url: str | None = None,
    objects: str | None = None,
    objects_endpoint: str | None = None,
    checkpoints: Path | None = None,
    from_start: bool = False,
) -> Verdict:
    """Judge one domain.

    Args:
        domain: such as `runner`.
        client: librdkafka settings that reach the broker, `bootstrap.servers` at least.
        dsn: of the database.
        timeout_s: how long to wait for the pipeline to drain, once all that is there has been read.
        progress: called with what is going on, and how many records were read.
        schema_registry_url: where to look up the schemas of inputs in the Confluent wire format.
        objects: where the object store is, as `file:///folder` or `s3://bucket/prefix`; only for domains whose workers make
            objects.
        objects_endpoint: where the server of that bucket is; None: Amazon's.
        checkpoints: the folder of what was proved before, which is read on from, and in which what is proved now is kept;
            None: everything is read, and nothing is kept.
        from_start: read everything all the same.
    """
    started = time.monotonic()
    judge: _Judge | None = None
    verdict = Verdict(domain, UNKNOWN, "")
    try:
        judge = _Judge(domain, client, dsn, progress, schema_registry_url, (objects or "", objects_endpoint))
        kept = Checkpoints(checkpoints, domain) if checkpoints else None
        if kept and not from_start:
            judge.go_on(kept, verdict)
        judge.run(verdict, timeout_s)
        if kept and verdict.outcome == VALID:
            verdict.note = judge.keep(kept)
    except (CannotTell, UnknownDomain) as reason:
        verdict.outcome, verdict.reason = UNKNOWN, str(reason)
    except Exception as error:  # noqa: BLE001 - a checker that fails, however it does, has proved nothing
        verdict.outcome, verdict.reason = UNKNOWN, f"the check itself failed: {type(error).__name__}: {error}"
    finally:
        if judge is not None:
            judge.close()
    verdict.seconds = round(time.monotonic() - started, 3)
    return verdict


class _Judge:
    def __init__(
        self,
        domain: str,
        client: dict[str, Any],
        dsn: str,
        progress: Progress,
        schema_registry_url: str | None,
        objects: tuple[str, str | None],
    ) -> None:
        self._work = workload(domain)
        self._dsn = dsn
        self._store = open_store(*objects) if self._work.made else None
        self._progress = progress
        reads = self._work.reads
        self._changelog = f"{domain}.changelog"
        several = len(reads) > 1
        self._order_topic = f"{domain}.order" if several else ""
        others = [*(f"{topic}.dead" for topic in reads), self._changelog, *([self._order_topic] if several else [])]
        log = f"{domain}.decisions"
        with Snapshot(dsn) as snapshot:
            from_log = any(topic == log for topic, _ in snapshot.ledger(self._work.name))
        self._landed_from = log if from_log else None
        others += [log] if from_log else []
        self._log = Log(client, [*reads, *self._work.outputs, *self._work.queues, *others])
        self._decided = Decided(self._log.topics[log].topic_id, self._take_written) if from_log else None
        self._outputs = Outputs(self._work)
        # What was published of what a log decided, in the output topics.
        self._published = Outputs(self._work)
        registry = Registry(schema_registry_url) if schema_registry_url else None
        topic_ids = {topic: self._log.topics[topic].topic_id for topic in reads}
        self._ask_receipts = partial(read_replays, client, domain, topic_ids)
        self._replays = Replays(self._ask_receipts())
        self._oracle = Oracle(self._work, self._log.topics[reads[0]].partitions, registry)
        self._oracle.withdrawn = self._replays.withdrawn
        self._order = Order(reads, self._oracle.feed) if several else None
        self._progresses: dict[int, dict[str, Any]] = {}
        self._read = 0
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
        judge = self._fingerprint, digest_of(self._replays.receipts), self._topic_ids()
        starts = {place: start for place, start in self._log.starts().items() if place[0] != self._changelog}
        found = kept.holding(judge, starts, self._log.stable_ends(), self._environment)
        if found is not None:
            checkpoint, state = found
            for name in _STATE:
                setattr(self, name, state[name])
            self._log.go_on(checkpoint.positions)
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
        self._log.close()

    def run(self, verdict: Verdict, timeout_s: float) -> None:
        """Fill in the verdict; raises `CannotTell`."""
        self._check_beginnings()
        deadline: float | None = None
        while True:
            ends = self._log.stable_ends()
            self._log.read(ends, self._take)
            verdict.offsets = by_topic(ends)
            deadline = deadline or time.monotonic() + timeout_s
            late = time.monotonic() > deadline
            holdup = self._holdup(ends) or (self._order.left_over() if self._order else "")
            if not holdup or late:
                findings = self._compare(verdict)
                still = self._log.stable_ends() == ends and not holdup
                if still or late or not (findings or holdup):
                    verdict.findings = findings
                    verdict.outcome, verdict.reason = _decide(findings, holdup, still)
                    return
            self._progress(holdup or "input is still arriving", self._read)
            time.sleep(_CHECK_AGAIN_S)

    def _check_beginnings(self) -> None:
        reads = self._work.reads
        if len({self._log.topics[topic].partitions for topic in reads}) > 1:
            raise CannotTell(f"the topics {', '.join(reads)} have different numbers of partitions")
        for (topic, partition), start in self._log.starts().items():
            if start > self._log.positions[topic, partition] and topic != self._changelog:
                raise CannotTell(f"{topic}/{partition} starts at offset {start}: what was before is gone from the log")

    def _take(self, record: Record) -> None:
        self._read += 1
        if self._read % 10_000 == 0:
            self._progress("reading the topics", self._read)
        if record.topic in self._work.reads:
            self._order.feed(record) if self._order else self._oracle.feed(record)
        elif record.topic == self._changelog:
            if record.key == b"p":
                self._progresses[record.partition] = json.loads(record.value or b"{}")
        elif self._decided is None:
            self._take_written(record)
        elif record.topic == self._landed_from:
            self._decided.feed(record)
        elif record.topic in self._work.queues:
            # What was decided is judged where it was decided; here is what workers have put back.
            if record.header(SOURCE_HEADER) is None:
                self._oracle.take_job(record)
        elif record.topic != self._order_topic:
            self._published.feed(record)

    def _take_written(self, record: Record) -> None:
        """What the processor has written, wherever it lies. Copies are judged where they arrive, among the inputs."""
        if record.topic == self._order_topic and self._order:
            self._order.add(record)
        elif record.topic in self._work.queues:
            self._oracle.take_job(record)
        elif record.topic in self._outputs.records:
            self._outputs.feed(record)

    def _holdup(self, ends: dict[Place, int]) -> str:
        """What has not drained yet, in one sentence; nothing when all has."""
        # Asked in this order, records that arrive between the two answers do not pass for an open transaction.
        high, stable = self._log.high_ends(), self._log.stable_ends()
        for topic, partition in self._log.places:
            if self._decided is not None and topic not in self._work.reads:
                continue  # a publisher may be in the middle of it, or dead
            if high[topic, partition] > stable[topic, partition]:
                return f"a transaction is open on {topic}/{partition}, from offset {stable[topic, partition]} on"
        for topic in self._work.reads:
            for partition in range(self._log.topics[topic].partitions):
                at = self._reached(partition).get(topic, {})
                if at and at["topic_id"] != self._log.topics[topic].topic_id:
                    raise CannotTell(f"the processor has read another topic {topic}, which has been recreated since")
                if at.get("next_offset", 0) < ends[topic, partition]:
                    done = at.get("next_offset", 0)
                    return f"the processor has read {topic}/{partition} up to {done} of {ends[topic, partition]}"
        return self._uncopied() or self._unlanded(ends) or self._unmade()

    def _unmade(self) -> str:
        """What a worker has still to make."""
        return cast(Making, self._oracle.expected.model).unmade() if self._store is not None else ""

    def _reached(self, partition: int) -> dict[str, dict[str, Any]]:
        """Of a task, by input topic: its id, and what is read next."""
        if self._decided is None:
            found: dict[str, dict[str, Any]] = self._progresses.get(partition, {}).get("inputs", {})
            return found
        standing = self._decided.standings.get(partition)
        inputs = standing.inputs if standing else {}
        return {topic: {"topic_id": topic_id, "next_offset": at} for topic, (topic_id, at) in inputs.items()}

    def _uncopied(self) -> str:
        """Decided copies for other partitions take effect when they have been published."""
        for (task, topic), version in self._decided.wrote.items() if self._decided is not None else ():
            if topic in self._work.reads and self._published_version(task) < version:
                return f"task {task} has copies for {topic} that nobody has published yet"
        return ""

    def _published_version(self, task: int) -> int:
        return int(self._progresses.get(task, {}).get("transactions", 0))

    def _unlanded(self, ends: dict[Place, int]) -> str:
        with Snapshot(self._dsn) as snapshot:
            ledger = snapshot.ledger(self._work.name)
        for topic in [self._landed_from] if self._landed_from else self._work.outputs:
            for partition in range(self._log.topics[topic].partitions):
                landed, topic_id = ledger.get((topic, partition), (0, self._log.topics[topic].topic_id))
                if topic_id != self._log.topics[topic].topic_id:
                    raise CannotTell(f"the sink has landed another topic {topic}, which has been recreated since")
                if landed < ends[topic, partition]:
                    return f"the sink has landed {topic}/{partition} up to {landed} of {ends[topic, partition]}"
        return ""

    def _compare(self, verdict: Verdict) -> list[Finding]:
        self._progress("comparing", self._read)
        expected = self._oracle.settled()
        with Snapshot(self._dsn) as snapshot:
            comparison = Comparison(self._work, snapshot, expected, self._outputs.last, self._landed_from)
            findings = [*comparison.findings(), *snapshot.rejected(self._work.name)]
            rules = invariants(self._work.name)
            unkept = list(snapshot.invariants(rules))
        findings += [*unkept, *self._outputs.judge(expected), *judge_copies(expected), *expected.fed.findings()]
        if self._ask_receipts() != self._replays.receipts:
            raise CannotTell("dead letters were replayed while this was going on; ask again")
        findings += [*self._replays.findings(), *self._judge_counts(expected)]
        if self._decided is not None and self._is_published():
            findings += self._published.judge(expected)
        letters = sum(self._outputs.records[f"{topic}.dead"] for topic in self._work.reads)
        copied = expected.counts.repartitioned - len(expected.uncopied) + len(expected.unsent)
        others = [*expected.fed.checks(), Check("dead letters", len(expected.dead), letters)]
        others.append(Check("repartitioned copies", expected.counts.repartitioned, copied))
        others += [
            Check(f"invariant {rule.name}", 0, sum(rule.name == found.where for found in unkept)) for rule in rules
        ]
        if self._store is not None:
            checks, wrong = cast(Making, expected.model).judge_made(self._store)
            others += checks
            findings += wrong
        verdict.checks = comparison.checks + others
        verdict.counts = {"records": expected.counts.records, **expected.counts.as_stored()}
        return findings

    def _is_published(self) -> bool:
        """Is all that was decided in the output topics? Then they are judged as well, for who reads them."""
        standings = self._decided.standings if self._decided is not None else {}
        return all(self._published_version(task) >= standing.version for task, standing in standings.items())

    def _judge_counts(self, expected: Expected) -> list[Finding]:
        """The processor counts for itself how records ended; it must have counted the same."""
        findings = []
        for name, wanted in expected.counts.as_stored().items():
            if self._decided is not None:
                found = self._decided.counts[name]
            else:
                found = sum(progress.get("counts", {}).get(name, 0) for progress in self._progresses.values())
            if found != wanted:
                difference = {name: (wanted, found)}
                findings.append(Finding("wrong count", self._changelog, {}, difference, weight=abs(wanted - found)))
        return findings


def _decide(findings: list[Finding], holdup: str, still: bool) -> tuple[str, str]:
    if holdup:
        return UNKNOWN, f"the pipeline has not drained: {holdup}"
    if not findings:
        return VALID, "every row, dead letter and repartitioned copy is what follows from the input log"
    if not still:
        return UNKNOWN, "input is still arriving, and rows differ"
    return INVALID, f"{len(findings)} differences from what follows from the input log"


# What the judge knows of the log; the rest of it is how it came to know that.
_STATE = ("_oracle", "_outputs", "_published", "_order", "_decided", "_replays", "_progresses", "_read")


def by_topic(ends: dict[Place, int]) -> dict[str, dict[int, int]]:
    """Offsets as a verdict has them."""
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), end in sorted(ends.items()):
        offsets.setdefault(topic, {})[partition] = end
    return offsets
