"""Status of a pipeline: all faults and warnings, the worst first. The worst status of all pipelines is the page's headline.

Pure functions from facts to sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Literal, NamedTuple

from onefold.dashboard.engine import LastVerdict
from onefold.dashboard.failures import Failure
from onefold.dashboard.jobs import ShownQueue
from onefold.dashboard.words import age, counted, whole
from onefold.operate.hanging_transactions import Held
from onefold.printable import sentence

# A shorter stall may be a large batch on a busy machine, whatever the age of the waiting records.
GLANCE_S = 20.0
# An older record counts as late: a batch of the sink takes a few seconds.
LATE_S = 15.0
# By then an operator who was called has seen the restart. The list of services keeps the count.
RESTART_RECENT = timedelta(minutes=10)
# One verification each night, and an hour for its run.
VERDICT_OLD = timedelta(hours=25)

Tone = Literal["good", "busy", "bad", "quiet"]


class Rank(IntEnum):
    """Kinds of status, the worst first: wrong tables, then obstacles to correct tables, then warnings, then missing checks."""

    BROKEN = 0
    WRONG = 1
    DIFFERS = 2
    HELD = 3
    UNREAD = 4
    PAUSED = 5
    STILL = 6
    NOT_LANDED = 7
    SILENT = 8
    UNKNOWN = 9
    REFUSED = 10
    DEAD = 11
    RESTARTED = 12
    OLD = 13
    NEVER = 14
    UNCHECKED = 15
    UNCOMPARED = 16
    BEHIND = 17
    WELL = 18
    EMPTY = 19


class Waiting(NamedTuple):
    """Backlog of one side, the processor's or the sink's.

    Attributes:
        events: None: unknown.
        oldest_s: age of the oldest waiting record, in seconds.
        still_s: seconds without observed progress.
    """

    events: int | None = None
    oldest_s: float | None = None
    still_s: float = 0.0

    def stands(self, stall_s: float) -> bool:
        """Whether the backlog is stalled.

        Either there was no progress for `stall_s`, or none for GLANCE_S while the oldest record has waited longer than
        `stall_s`.
        """
        if not self.events:
            return False
        return self.still_s > stall_s or (self.still_s > GLANCE_S and (self.oldest_s or 0.0) > stall_s)


@dataclass(frozen=True)
class Dead:
    """Open dead letters of a pipeline: neither replayed nor dropped.

    Attributes:
        exact: False: `count` is an upper bound.
        failures: the most frequent reasons.
    """

    count: int
    exact: bool = True
    failures: Sequence[Failure] = ()


class StackService(NamedTuple):
    """A process of the embedded stack.

    Attributes:
        ended: description of the last exit, or "".
        ended_at: time of the last exit.
        shared: whether all pipelines share the process.
        log_place: path of the log, size of the file in bytes at the exit, and the file's inode, 0 if unknown; None: not known.
    """

    name: str
    state: str
    restarts: int = 0
    ended: str = ""
    ended_at: datetime | None = None
    shared: bool = False
    log_place: tuple[str, int, int] | None = None


#: The backlog before the first answer.
UNASKED = Waiting()


@dataclass(frozen=True)
class PipelineFacts:
    """Facts about a pipeline at one moment.

    Attributes:
        now: database time.
        landed: whether the sink has written any record.
        silent: reason why all backlogs are unknown, in one sentence, or "".
        unknown: reason why the lag of this pipeline alone is unknown, in one sentence, or "".
        partitions: fault in the partitions of the pipeline's topics, in one sentence, or "".
        paused: since when, by whom and why, or "": not paused.
        rejected: output records that PostgreSQL refused.
        queues: queues of the pipeline's jobs.
        broken: rows that break an invariant, in words.
        unchecked: invariants whose query gave no answer, each in a sentence.
        sums: fault in the sums of the rollups, as `says` and `detail` of `PipelineStatus`, or None.
        uncompared: rollups whose sums were not compared, each in a sentence.
    """

    name: str
    now: datetime
    landed: bool = False
    verdict: LastVerdict | None = None
    to_fold: Waiting = UNASKED
    to_land: Waiting = UNASKED
    silent: str = ""
    unknown: str = ""
    held: Collection[Held] = ()
    partitions: str = ""
    paused: str = ""
    dead: Dead | None = None
    rejected: int = 0
    queues: Collection[ShownQueue] = ()
    services: Collection[StackService] = ()
    broken: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    sums: tuple[str, str] | None = None
    uncompared: Sequence[str] = ()


@dataclass(frozen=True)
class PipelineStatus:
    """One statement about a pipeline.

    Attributes:
        name: of the pipeline; "": no single pipeline.
        says: words after the name.
        detail: one further sentence.
        command: command that shows more or fixes the fault; "" if there is none.
    """

    rank: Rank
    tone: Tone
    name: str
    says: str
    detail: str
    command: str = ""

    @property
    def text(self) -> str:
        """Name and words in one line."""
        return f"{self.name} {self.says}".strip()


@dataclass(frozen=True)
class Headline:
    """The first statement of the page. `others`: number of further pipelines with a warning."""

    standing: PipelineStatus
    others: int = 0


def of(facts: PipelineFacts, stall_s: float) -> list[PipelineStatus]:
    """List all statuses of a pipeline, the worst first; at least one.

    Args:
        stall_s: seconds without progress after which a backlog counts as stalled.
    """
    found = [*_tables(facts), *_ways(facts, stall_s), *_looks(facts)]
    if not found and not facts.landed:
        found = [_said(facts, Rank.EMPTY, "quiet", "has no rows yet", "Numbers appear with its first batch.")]
    return sorted(found, key=lambda one: one.rank) or [_well(facts)]


def headline(standings: Mapping[str, Sequence[PipelineStatus]]) -> Headline:
    """Pick the worst status of all pipelines; among equals the first by name.

    Args:
        standings: per pipeline the result of `of`.
    """
    firsts = [standings[name][0] for name in sorted(standings)]
    wrong = [one for one in firsts if one.rank < Rank.WELL]
    if not wrong:
        return Headline(_all_well([one for one in firsts if one.rank == Rank.WELL]))
    worst = min(wrong, key=lambda one: one.rank)
    return Headline(worst, len({one.name for one in wrong if one.name != worst.name} - {""}))


def _all_well(well: Sequence[PipelineStatus]) -> PipelineStatus:
    if not well:
        return PipelineStatus(Rank.EMPTY, "quiet", "", "No rows yet", "Numbers appear here with the first batch.")
    if len(well) == 1:
        return well[0]
    detail = f"All {len(well)} pipelines make progress or have no work, and the last verdict on each is valid."
    return PipelineStatus(Rank.WELL, "good", "", "All pipelines are healthy", detail)


def _well(facts: PipelineFacts) -> PipelineStatus:
    verdict = facts.verdict
    if verdict is None:
        return _said(facts, Rank.WELL, "good", "is healthy", "")
    since = f"; {whole(verdict.since)} offsets were written since" if verdict.since else ""
    detail = f"{_verified(facts, verdict)}{since}.{_left_out(*verdict.left_out)}"
    return _said(facts, Rank.WELL, "good", "is healthy", detail)


def _left_out(objects: int, records: int) -> str:
    """Further sentences about objects and records that no verdict covers."""
    said = f" Topics, tables and columns that no model judges: {whole(objects)}." if objects else ""
    return said + (f" Output records that were not compared: {whole(records)}." if records else "")


def _verified(facts: PipelineFacts, verdict: LastVerdict) -> str:
    """Time of the verdict in UTC, with the day unless that is today."""
    same_day = verdict.judged_at.date() == facts.now.date()
    return f"Verified at {verdict.judged_at:{'%H:%M:%S' if same_day else '%Y-%m-%d %H:%M:%S'}}"


def _tables(facts: PipelineFacts) -> Iterator[PipelineStatus]:
    """Statuses of the tables: invariants, sums, refused rows and the verdict."""
    verify = f"onefold verify {facts.name}"
    if facts.broken:
        yield _said(facts, Rank.BROKEN, "bad", "breaks an invariant", f"{facts.broken[0]}.", verify)
    if facts.sums is not None:
        yield _said(facts, Rank.DIFFERS, "bad", *facts.sums, verify)
    if facts.unchecked:
        yield _said(
            facts, Rank.UNCHECKED, "quiet", "has an invariant that is not checked here", facts.unchecked[0], verify
        )
    if facts.uncompared:
        says = "has sums that are not compared here"
        yield _said(facts, Rank.UNCOMPARED, "quiet", says, facts.uncompared[0], verify)
    if facts.rejected:
        what = "1 output record is" if facts.rejected == 1 else f"{whole(facts.rejected)} output records are"
        yield _said(
            facts, Rank.NOT_LANDED, "bad", "has rows that PostgreSQL refused",
            f"{what} in onefold.rejected, each with its reason.", verify,
        )  # fmt: skip
    verdict = facts.verdict
    if verdict is None:
        if facts.landed:
            detail = "No run of `onefold verify` has recomputed its tables from the log."
            yield _said(facts, Rank.NEVER, "quiet", "was never verified", detail, verify)
        return
    detail = sentence(verdict.reason)
    if verdict.outcome == "invalid":
        yield _said(facts, Rank.WRONG, "bad", "is wrong", f"{_verified(facts, verdict)}: {detail}", verify)
    elif verdict.outcome != "valid":
        yield _said(facts, Rank.UNKNOWN, "busy", "could not be verified", detail, verify)
    elif verdict.outputs == 0 and verdict.since:
        since = f"{whole(verdict.since)} offsets were written since"
        detail = f"{_verified(facts, verdict)}, before its first output record; {since}."
        yield _said(facts, Rank.NEVER, "quiet", "has rows that no verdict covers", detail, verify)
    elif verdict.since and facts.now - verdict.judged_at > VERDICT_OLD:
        ago = age((facts.now - verdict.judged_at).total_seconds())
        detail = f"It was valid, and {whole(verdict.since)} offsets were written since."
        yield _said(facts, Rank.OLD, "quiet", f"was last verified {ago} ago", detail, verify)


def _ways(facts: PipelineFacts, stall_s: float) -> Iterator[PipelineStatus]:
    """Statuses of the backlogs."""
    if facts.silent:
        yield PipelineStatus(
            Rank.SILENT, "busy", "", facts.silent.rstrip("."),
            "What waits is unknown. The tables stay as they are.", "onefold status",
        )  # fmt: skip
    if facts.unknown:
        yield _said(
            facts, Rank.SILENT, "busy", "has an unknown lag", sentence(facts.unknown), "onefold status"
        )  # fmt: skip
    for held in facts.held:
        yield _said(facts, Rank.HELD, "bad", "is blocked by an open transaction", f"{sentence(str(held))}", held.remedy)
    if facts.partitions:
        detail = f"{sentence(facts.partitions)} See `onefold docs operating`, partitions added."
        yield _said(facts, Rank.UNREAD, "bad", "has partitions that no task reads", detail, "onefold status")
    if facts.paused:
        detail = f"{sentence(facts.paused)} What comes meanwhile waits in Kafka."
        yield _said(facts, Rank.PAUSED, "busy", "is paused", detail, f"onefold resume {facts.name}")
        return
    sides = (("processed", "processor", facts.to_fold), ("written", "sink", facts.to_land))
    for done, who, waiting in sides:
        if waiting.stands(stall_s):
            detail = f"{_waits(waiting, done)}, and no progress for {age(waiting.still_s)}."
            yield _said(facts, Rank.STILL, "bad", "is stalled", detail, _log_of(facts, who))
        elif waiting.events and (waiting.oldest_s or 0.0) > LATE_S:
            yield _said(facts, Rank.BEHIND, "busy", "is behind", f"{_waits(waiting, done)}.")


def _looks(facts: PipelineFacts) -> Iterator[PipelineStatus]:
    """Warnings that do not stop the pipeline."""
    for queue in facts.queues:
        if queue.refused:
            what = "a job" if queue.refused == 1 else f"{counted(queue.refused)} jobs"
            wait = "It waits" if queue.refused == 1 else "They wait"
            detail = f"{sentence(queue.refusal)} {wait} in {queue.queue}, and so does what comes later in its log."
            yield _said(facts, Rank.REFUSED, "bad", f"has {what} that cannot be done", detail, "onefold status")
    if facts.dead is not None and facts.dead.count:
        yield _dead(facts, facts.dead)
    for service in facts.services:
        if service.shared and facts.name:
            continue  # else every pipeline would repeat it first
        recent = service.ended_at is not None and facts.now - service.ended_at < RESTART_RECENT
        if service.restarts and (recent or service.state == "restarting"):
            ago = "" if service.ended_at is None else f", {age((facts.now - service.ended_at).total_seconds())} ago"
            times = "once" if service.restarts == 1 else f"{whole(service.restarts)} times"
            detail = f"{service.name} {service.ended or 'ended'}{ago}; it was restarted {times}."
            log = f"onefold logs {service.name}"
            yield _said(
                facts,
                Rank.RESTARTED,
                "busy",
                f"{'' if facts.name else service.name} had to be restarted".strip(),
                detail,
                log,
            )


def _dead(facts: PipelineFacts, dead: Dead) -> PipelineStatus:
    most = "" if dead.exact else "up to "
    what = "a dead letter" if dead.count == 1 else f"{most}{whole(dead.count)} dead letters"
    often = [f"{one.reason} ({whole(one.count)}\N{MULTIPLICATION SIGN})" for one in dead.failures[:1]]
    detail = sentence(often[0]) if often else "Its processor refused these records, each with a reason."
    return _said(facts, Rank.DEAD, "busy", f"has {what}", detail, f"onefold dead-letters list {facts.name}")


def _waits(waiting: Waiting, done: str) -> str:
    what = "1 record waits" if waiting.events == 1 else f"{whole(waiting.events)} records wait"
    oldest = "" if waiting.oldest_s is None else f", the oldest for {age(waiting.oldest_s)}"
    return f"{what} to be {done}{oldest}"


def _log_of(facts: PipelineFacts, who: str) -> str:
    """Command that shows the log of the first such service. Only the embedded stack has known logs."""
    names = [service.name for service in facts.services if service.name.startswith(f"{who}-")]
    return f"onefold logs {names[0]}" if names else "onefold status"


def _said(facts: PipelineFacts, rank: Rank, tone: Tone, says: str, detail: str, command: str = "") -> PipelineStatus:
    return PipelineStatus(rank, tone, facts.name, says, detail, command)
