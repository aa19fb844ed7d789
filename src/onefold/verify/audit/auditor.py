"""Follows one domain and its tables, and names what diverges as soon as it is seen.

Reading and looking take turns. A look is one snapshot of the database: the ledger's offsets in it say what the tables must hold,
so nothing has to drain. Looks are as far apart as they are dear: they take no more than a share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onefold.error_codes import Code, CodedError
from onefold.verify.audit.following import Following
from onefold.verify.audit.pace import PACE, Pace
from onefold.verify.audit.tables import Ledger, Tables
from onefold.verify.checkpoints import Checkpoints
from onefold.verify.expect import Workload
from onefold.verify.judge import by_topic, seldom
from onefold.verify.kafka import KAFKA, Kafka
from onefold.verify.loading import workload
from onefold.verify.objects import open_store
from onefold.verify.registry import Registry
from onefold.verify.snapshot import Snapshot
from onefold.verify.unjudged import unjudged
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, CannotTell, Finding, doubted

# What is dear is looked at more seldom, so that looks take no more than this share of the time; but not so seldom that a finding
# comes too late.
_LOOK_SHARE = 0.15
# Of a look, what may go into rows that did not change.
_BUDGET_S = 0.03
# Between two turns: a transaction takes about as long.
_PAUSE_S = 0.1
# Where something does not answer.
_TRY_AGAIN_S = 1.0
# A transaction of the processor takes less, unless it was left open.
_OPEN_S = 30.0
# What is kept of a divergence that goes on; its first ones tell.
_FINDINGS_MAX = 1000


class _Over(CodedError):
    """The topics are others now, and what was known of them is of no use: the text is one sentence."""


@dataclass
class Standing:
    """What the auditor can say now.

    Attributes:
        outcome: valid, invalid or unknown, as a verdict's.
        reason: one sentence.
        code: of what keeps it from seeing everything just now, or "".
        found: what was found since the last time.
        findings: all that was found, of each row and parked key the first of a kind, and the first ones if it is very much.
        more: how many other records are wrong in the same way.
        offsets: per topic and partition, up to where everything was read.
        records: how many were read.
        judged: how many output records were compared with the model.
        rows: how many rows of tables were compared.
        waiting: how many input records wait for their results.
        behind_s: all that the processor had written so many seconds ago has been compared; None: nothing yet.
        cycle_s: how long it took at last until every row of the tables had come round; None: not yet.
        reads: how often records have come while it reads what was there at its start; 0: it does not read that.
        troubled: whether something kept it from seeing everything just now.
        not_judged: what of the pipeline nobody compares, each with the reason that the model gives, or "".
        unkept: why what was compared could not be left to the next judge, or "".
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
    """Why a pipeline of this kind is not audited, in one sentence; "" when it is."""
    instead = f"`onefold verify {work.name}` verifies it"
    if bare := [table.name for table in work.tables if table.summed and table.sums is None]:
        return f"{work.name} is not audited: its model does not say what {bare[0]} is the sum of; {instead}"
    return ""


class Auditor:
    """Audits one domain. Close it after use.

    Args:
        client: librdkafka settings that reach the broker.
        dsn: of the database.
        checkpoints: the folder of what was proved, which is read on from and added to; None: everything is read.
        objects: where the objects lie that its workers make, if they make any.
        objects_endpoint: of S3, when that is not Amazon's.
        kafka: how to ask Kafka.
        pace: how often the verifier looks, and how much it takes in one step.
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
        self._doubt = ""  # why the findings prove nothing
        self._unnamed: list[
            tuple[Finding, bool]
        ] = []  # each with whether it is of a record, and not of a row that stays wrong
        self._ask_at = 0.0
        self._leave_at = 0.0
        self._left_records = 0  # how many had been read when it left something
        self._told: Callable[[Standing], None] = lambda standing: None
        self.standing = Standing()

    @seldom()
    def run(
        self, told: Callable[[Standing], None], stop: Callable[[float], bool], enough: Callable[[Standing], bool]
    ) -> Standing:
        """Go on until it is stopped, or enough is known, or the topics are deleted or made anew.

        Args:
            told: called after each turn, and again and again while it reads what is there at the start.
            stop: waits so many seconds, and says whether to stop.
            enough: whether to end with what is known.
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
        """Let go of the broker."""
        if self._following is not None:
            with suppress(Exception):  # what is left of a broker that is away
                self._following.close()

    def _drop_torn(self) -> None:
        """Begin anew the next time, when the model has taken a record half, as when a schema cannot be looked up."""
        if self._following is not None and not self._following.is_whole:
            self.close()
            self._following = None

    def _turn(self) -> bool:
        """One step, and a look when it is time. Returns whether it is level with the pipeline."""
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
        """Leave what was compared to the next judge, when it is time and something was read since."""
        began_at = time.monotonic()
        told = self.standing.outcome == VALID and following.leaves and following.records > self._left_records
        if told and began_at >= self._leave_at:
            self.standing.unkept = following.leave()
            now = time.monotonic()
            self._left_records = following.records
            self._leave_at = now + max(self._pace.leave_every_s, (now - began_at) / self._pace.leave_share)

    def _begin(self) -> None:
        self.standing.reads = 0
        registry = Registry(self._registry_url) if self._registry_url else None
        with Snapshot(self._dsn) as snapshot:
            snapshot.ledger(self._work.name)  # before hours of reading: it may be of a decision log
        following = Following(self._work, self._client, registry, self._kept, self._reads, self._kafka, self._pace)
        try:
            following.begin()
            self._tables = Tables(self._work, following.versions)
            self._ledger = Ledger(following.topic_ids)
            with Snapshot(self._dsn) as snapshot:
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
        """Records come, of what was there at the start: that may take minutes, and nothing keeps it meanwhile."""
        self.standing.reads += 1
        self.standing.troubled = False
        self._told(self.standing)

    def _look(self) -> str:
        """Compare tables; returns why they cannot be yet, or ""."""
        following = self._following
        assert following is not None, "it has begun"
        began_at, wrong = time.monotonic(), list[Finding]()
        try:
            with Snapshot(self._dsn) as snapshot:
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
            # Of a pipeline that is started over, rows and records go one after the other.
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
            # Without an answer they are named the next time, and prove nothing until then.
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
            self._name([])  # what was found before is worth more
        except CannotTell:
            pass  # it is named when Kafka is there again
        except _Over:
            self._ask_at = 0.0  # the next turn says so
        standing = self.standing
        self._say(str(reason))
        standing.troubled = True
        if not standing.findings:
            standing.outcome, standing.reason, standing.code = UNKNOWN, str(reason), str(reason.code)
