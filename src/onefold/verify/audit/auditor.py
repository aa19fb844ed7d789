"""Follow a pipeline and its tables, and report each mismatch at once.

Reading and looking alternate. A look is one snapshot of the database. The offsets of the ledger in the snapshot determine the
expected rows, so the pipeline need not drain. The interval between looks grows with their cost, to limit their share of the
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onefold.error_codes import Code, CodedError
from onefold.verify.audit.log_follower import Following
from onefold.verify.audit.pace import PACE, Pace
from onefold.verify.audit.tables import Ledger, Tables
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.expect import Workload
from onefold.verify.judge import by_topic, seldom
from onefold.verify.kafka import KAFKA, Kafka
from onefold.verify.loading import workload
from onefold.verify.objects import open_store
from onefold.verify.registry import SchemasById
from onefold.verify.snapshot import DatabaseSnapshot
from onefold.verify.unjudged import unjudged
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, CannotTell, Finding, doubted

# The share of the time for looks. Expensive looks are rarer, but never so rare that a mismatch is reported too late.
_LOOK_SHARE = 0.15
# The time in a look for rows without a change.
_BUDGET_S = 0.03
# The pause between two turns, about as long as a transaction.
_PAUSE_S = 0.1
# The pause after a missing answer.
_TRY_AGAIN_S = 1.0
# A transaction of the processor is shorter, unless it stays open.
_OPEN_S = 30.0
# A bound for a repeated mismatch; the first ones are enough.
_FINDINGS_MAX = 1000


class _Over(CodedError):
    """The topics were recreated, so the state of the verifier is useless. The text is one sentence."""


@dataclass
class AuditStatus:
    """The present status of the continuous verifier.

    Attributes:
        outcome: valid, invalid or unknown, as in a verdict.
        reason: one sentence.
        code: the code of a present obstacle, or "".
        found: the mismatches since the last status.
        findings: all mismatches: of each row and parked key the first one of a kind, and only the first ones of very many.
        more: how many more records are wrong in the same way.
        offsets: per topic and partition, the offset up to which all records were read.
        records: the number of records read.
        judged: the number of output records compared with the model.
        rows: the number of table rows compared.
        waiting: the number of input records without complete results.
        behind_s: everything that the processor had written this many seconds ago has been compared; None: nothing yet.
        cycle_s: the duration of the last complete pass over all rows of the tables; None: no pass is complete.
        reads: how often records arrived during the initial read; 0 outside the initial read.
        troubled: whether an obstacle just now hides part of the pipeline.
        not_judged: what is compared nowhere in the pipeline, each with the reason from the model, or "".
        unkept: why the last checkpoint could not be saved, or "".
    """

    outcome: str = UNKNOWN
    reason: str = "it has just begun"
    code: str = ""
    found: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    more: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    records: int = 0
    judged: int = 0
    rows: int = 0
    waiting: int = 0
    behind_s: float | None = None
    cycle_s: float | None = None
    reads: int = 0
    troubled: bool = False
    not_judged: dict[str, str] = field(default_factory=dict)
    unkept: str = ""


def refusal(work: Workload) -> str:
    """Return why the continuous verifier refuses a pipeline of this kind, in one sentence; "" if accepted."""
    instead = f"`onefold verify {work.name}` verifies it"
    if bare := [table.name for table in work.tables if table.summed and table.sums is None]:
        return f"{work.name} is not audited: its model does not say what {bare[0]} is the sum of; {instead}"
    return ""


class Auditor:
    """The continuous verifier of one pipeline. Close after use.

    Args:
        client: librdkafka settings that reach the broker.
        dsn: of the database.
        checkpoints: the folder of checkpoints to continue from and to add to; None: read everything.
        objects: the address of the object store, for a pipeline with objects.
        objects_endpoint: the S3 server; None: Amazon's.
        kafka: how to read Kafka.
        pace: the intervals and step sizes.
    """

    def __init__(
        self,
        domain: str,
        *,
        client: dict[str, Any],
        dsn: str,
        schema_registry_url: str | None = None,
        checkpoints: Path | None = None,
        objects: str | None = None,
        objects_endpoint: str | None = None,
        kafka: Kafka = KAFKA,
        pace: Pace = PACE,
    ) -> None:
        self._work = workload(domain)
        self._client, self._kafka, self._pace = client, kafka, pace
        self._dsn = dsn
        self._registry_url = schema_registry_url
        self._objects = objects or "", objects_endpoint
        self._made: Callable[[], Iterable[Finding]] = list
        self._kept = Checkpoints(checkpoints, domain) if checkpoints else None
        self._following: Following | None = None
        self._look_at = 0.0
        self._waits = ""
        self._seen: set[tuple[Any, ...]] = set()
        self._doubt = ""  # why the mismatches prove nothing
        self._unnamed: list[tuple[Finding, bool]] = []  # True: a mismatch of a record, not of a row that stays wrong
        self._ask_at = 0.0
        self._leave_at = 0.0
        self._left_records = 0  # the number of records read at the last checkpoint
        self._told: Callable[[AuditStatus], None] = lambda standing: None
        self.standing = AuditStatus()

    @seldom()
    def run(
        self, told: Callable[[AuditStatus], None], stop: Callable[[float], bool], enough: Callable[[AuditStatus], bool]
    ) -> AuditStatus:
        """Run until `stop` or `enough` returns True, a topic is deleted or recreated, or an unexpected error occurs.

        `told` is called after each turn, and repeatedly during the initial read. `stop` waits the given seconds, and returns
        whether to stop. `enough` returns whether to end with the present status.
        """
        self._told = told
        while True:
            pause = _PAUSE_S
            try:
                if not self._turn():
                    pause = 0.0
            except CannotTell as reason:
                self._unknown(reason)
                self._drop_torn()
                pause = _TRY_AGAIN_S
            except _Over as reason:
                self._unknown(reason)
                told(self.standing)
                return self.standing
            except Exception as error:  # noqa: BLE001 - an auditor that fails, however it does, has proved nothing
                failed = f"the audit itself failed: {type(error).__name__}: {error}"
                self._unknown(CodedError(Code.NO_VERDICT, failed))
                told(self.standing)
                return self.standing
            told(self.standing)
            self.standing.found = []
            if enough(self.standing) or stop(pause):
                return self.standing

    def close(self) -> None:
        """Close the connection to the broker."""
        if self._following is not None:
            with suppress(Exception):  # the broker may be away
                self._following.close()

    def _drop_torn(self) -> None:
        """Start again in the next turn if an error stopped the model within a record, as a failed lookup of a schema does."""
        if self._following is not None and not self._following.is_whole:
            self.close()
            self._following = None

    def _turn(self) -> bool:
        """Do one step, and a look when due. Return whether the verifier has caught up with the pipeline."""
        if self._following is None:
            self._begin()
            return True
        following = self._following
        if time.monotonic() >= self._ask_at:
            self._refuse_others()
        level = following.step()
        if time.monotonic() >= self._look_at:
            self._waits = self._look()
        self._take_figures()
        self._name([])
        if held := following.held(_OPEN_S):
            raise CannotTell(Code.TOPIC_UNREADABLE, held)
        if following.unordered:
            raise CannotTell(Code.PROGRESS_UNKNOWN, following.unordered)
        if undeclared := following.undeclared:
            raise CannotTell(Code.MODEL_WRONG, undeclared)
        self._say(self._waits)
        self._leave(following)
        return level

    def _leave(self, following: Following) -> None:
        """Save a checkpoint for the next verifier, when due and after new records."""
        began_at = time.monotonic()
        told = self.standing.outcome == VALID and following.leaves and following.records > self._left_records
        if told and began_at >= self._leave_at:
            self.standing.unkept = following.leave()
            now = time.monotonic()
            self._left_records = following.records
            self._leave_at = now + max(self._pace.leave_every_s, (now - began_at) / self._pace.leave_share)

    def _begin(self) -> None:
        self.standing.reads = 0
        registry = SchemasById(self._registry_url) if self._registry_url else None
        with DatabaseSnapshot(self._dsn) as snapshot:
            snapshot.ledger(self._work.name)  # before hours of reading: the ledger may belong to a decision log
        following = Following(self._work, self._client, registry, self._kept, self._reads, self._kafka, self._pace)
        try:
            following.begin()
            self._tables = Tables(self._work, following.versions)
            self._ledger = Ledger(following.topic_ids)
            with DatabaseSnapshot(self._dsn) as snapshot:
                wrong = list(self._tables.columns(snapshot))
                self.standing.not_judged = unjudged(self._work, snapshot)
            if self._work.made:
                self._made = following.follow_made(open_store(*self._objects))
        except BaseException:
            following.close()
            raise
        self._following = following
        self.standing.reads = 0
        self._left_records = 0
        self._leave_at = time.monotonic() + self._pace.leave_every_s
        self._name(wrong)

    def _reads(self) -> None:
        """Report that records arrive in the initial read, which may take minutes: there is no obstacle now."""
        self.standing.reads += 1
        self.standing.troubled = False
        self._told(self.standing)

    def _look(self) -> str:
        """Compare tables. Return why the comparison has to wait, or ""."""
        following = self._following
        assert following is not None, "it has begun"
        began_at, wrong = time.monotonic(), list[Finding]()
        try:
            with DatabaseSnapshot(self._dsn) as snapshot:
                wrong += self._ledger.take(snapshot.ledger(self._work.name), following.high_ends())
                landed = self._ledger.landed
                for (topic, partition), end in following.began_at.items():
                    done = landed.get((topic, partition), 0)
                    if topic in self._work.outputs and done < end:
                        return f"the sink has written {topic}/{partition} up to {done} of {end}"
                following.read_to(landed)
                following.land(landed)
                wrong += self._tables.look(snapshot, _BUDGET_S)
            wrong += self._made()
        finally:
            self._name(wrong)
            cost = time.monotonic() - began_at
            pause = min(self._pace.look_every_max_s, max(self._pace.look_every_s, cost * (1 / _LOOK_SHARE - 1)))
            self._look_at = time.monotonic() + pause
        self.standing.cycle_s = self._tables.cycle_s
        return ""

    def _name(self, wrong: list[Finding]) -> None:
        following, standing = self._following, self.standing
        if following is not None:
            self._unnamed += [(finding, bool(finding.key or finding.output)) for finding in following.findings]
            following.findings.clear()
        self._unnamed += [(finding, False) for finding in wrong]
        if self._unnamed:
            # A reset of the pipeline deletes rows and topics one after another, which is no mismatch.
            self._refuse_others()
        new: dict[tuple[Any, ...], Finding] = {}
        more = 0
        for finding, of_record in self._unnamed:
            known = finding.kind, finding.where, repr(finding.key or (finding.output, finding.source, *finding.columns))
            if known in self._seen or known in new or len(self._seen) + len(new) >= _FINDINGS_MAX:
                more += of_record
            else:
                new[known] = finding
        if new and following is not None:
            # If Kafka does not answer, the mismatches stay unnamed until the next turn.
            self._doubt = doubted([*standing.findings, *new.values()], following.compacted())
        self._unnamed = []
        self._seen.update(new)
        standing.found = [*standing.found, *new.values()]
        standing.findings += new.values()
        standing.more += more

    def _refuse_others(self) -> None:
        self._ask_at = time.monotonic() + self._pace.ask_every_s
        if self._following is not None and (topic := self._following.gone()):
            raise _Over(
                Code.TOPIC_RECREATED,
                f"{topic} was deleted or recreated: this run ends, and the next starts with the present topic",
            )

    def _take_figures(self) -> None:
        following, standing = self._following, self.standing
        assert following is not None, "it has begun"
        standing.records, standing.judged, standing.waiting = following.records, following.judged, following.waiting
        standing.behind_s = following.behind_s
        standing.rows, standing.counts = self._tables.rows, following.counts
        standing.offsets = by_topic(following.positions)

    def _say(self, waits: str) -> None:
        standing = self.standing
        standing.troubled, standing.code = False, ""
        if standing.findings and self._doubt:
            standing.outcome, standing.reason, standing.code = UNKNOWN, self._doubt, str(Code.RECORDS_DELETED)
        elif standing.findings:
            standing.outcome = INVALID
            standing.reason = f"{len(standing.findings)} differences from what follows from the input log"
        elif waits or standing.cycle_s is None:
            standing.outcome, standing.reason = UNKNOWN, waits or "not every row of the tables has been looked at yet"
        elif standing.behind_s is None or standing.behind_s > self._pace.behind_s:
            standing.outcome = UNKNOWN
            standing.reason = f"it is more than {self._pace.behind_s:.0f} s behind what the processor has written"
        else:
            standing.outcome = VALID
            standing.reason = "every output record and every row so far is what follows from the input log"

    def _unknown(self, reason: CodedError) -> None:
        try:
            self._name([])  # earlier mismatches come first
        except CannotTell:
            pass  # named when Kafka answers again
        except _Over:
            self._ask_at = 0.0  # the next turn raises again
        standing = self.standing
        self._say(str(reason))
        standing.troubled = True
        if not standing.findings:
            standing.outcome, standing.reason, standing.code = UNKNOWN, str(reason), str(reason.code)
