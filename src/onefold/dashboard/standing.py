"""How a pipeline stands: all that is wrong with it or worth a look, the worst first; and of all pipelines the worst one, which is
the page's headline. Pure: facts in, sentences out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Literal, NamedTuple

from onefold.dashboard.engine import Verdict
from onefold.dashboard.failures import Failure
from onefold.dashboard.jobs import Jobs
from onefold.dashboard.words import age, counted, whole
from onefold.operate.held import Held
from onefold.printable import sentence

# What stands still for less than that may be a large batch on a busy machine, however old it is.
GLANCE_S = 20.0
# What waits for longer is not only passing through: a batch of the sink takes some seconds.
LATE_S = 15.0
# Whoever was called has seen it by then; the count stays in the list.
RESTART_RECENT = timedelta(minutes=10)
# A verify each night, and an hour for it.
VERDICT_OLD = timedelta(hours=25)

Tone = Literal["good", "busy", "bad", "quiet"]


class Rank(IntEnum):
    """What is true of a pipeline, the worst first: tables that are wrong, then what keeps them from being right, then what has to
    be looked at, then what nobody has looked at.
    """

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
    """What waits on one side of a topic.

    Attributes:
        events: None: unknown.
        oldest_s: how long the oldest has waited, in seconds.
        still_s: for so long nothing has moved of it, as far as somebody has looked.
    """

    events: int | None = None
    oldest_s: float | None = None
    still_s: float = 0.0

    def stands(self, stall_s: float) -> bool:
        """Whether it does not move: nobody has seen it move for `stall_s`, or for a glance, and it waits for that long."""
        if not self.events:
            return False
        return self.still_s > stall_s or (self.still_s > GLANCE_S and (self.oldest_s or 0.0) > stall_s)


@dataclass(frozen=True)
class Dead:
    """The dead letters of a pipeline that nobody has replayed or dropped.

    Attributes:
        exact: False: there are at most so many.
        failures: by the most frequent reasons.
    """

    count: int
    exact: bool = True
    failures: Sequence[Failure] = ()


class Service(NamedTuple):
    """A process of the embedded stack.

    Attributes:
        ended: how it ended the last time, or "".
        ended_at: when.
        shared: by all pipelines.
        log_place: its log, how many bytes its file had then, and that file's inode, 0 if unknown; None: not known.
    """

    name: str
    state: str
    restarts: int = 0
    ended: str = ""
    ended_at: datetime | None = None
    shared: bool = False
    log_place: tuple[str, int, int] | None = None


#: Nobody has asked yet.
UNASKED = Waiting()


@dataclass(frozen=True)
class Facts:
    """What is known of a pipeline at one moment.

    Attributes:
        now: by the database's clock.
        landed: whether anything has.
        silent: why nobody knows what waits, in one sentence, or "".
        unknown: why the lag of this pipeline alone is unknown, in one sentence, or "".
        partitions: what is wrong with the partitions of its topics, in one sentence, or "".
        paused: since when, by whom and why, or "": it is not paused.
        rejected: output records that could not be landed.
        queues: of its jobs.
        broken: rows that break an invariant, in words.
        unchecked: its invariants whose query has not answered, each in a sentence.
        sums: what is wrong with the sums of its rollups, in two parts as `Standing` has them, or None.
        uncompared: its rollups whose sums were not compared, each in a sentence.
    """

    name: str
    now: datetime
    landed: bool = False
    verdict: Verdict | None = None
    to_fold: Waiting = UNASKED
    to_land: Waiting = UNASKED
    silent: str = ""
    unknown: str = ""
    held: Collection[Held] = ()
    partitions: str = ""
    paused: str = ""
    dead: Dead | None = None
    rejected: int = 0
    queues: Collection[Jobs] = ()
    services: Collection[Service] = ()
    broken: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    sums: tuple[str, str] | None = None
    uncompared: Sequence[str] = ()


@dataclass(frozen=True)
class Standing:
    """One thing that is true of a pipeline.

    Attributes:
        name: the pipeline's; "": it is true of no pipeline alone.
        says: the words after its name.
        detail: one sentence more.
        command: what to run to see more of it, or to end it; "" when there is nothing to do.
    """

    rank: Rank
    tone: Tone
    name: str
    says: str
    detail: str
    command: str = ""

    @property
    def text(self) -> str:
        """The whole of it as a line."""
        return f"{self.name} {self.says}".strip()


@dataclass(frozen=True)
class Headline:
    """The one thing first. others: how many more pipelines there are to look at."""

    standing: Standing
    others: int = 0


def of(facts: Facts, stall_s: float) -> list[Standing]:
    """All that is to be said of a pipeline, the worst first; never nothing.

    Args:
        stall_s: from then on what waits is called still.
    """
    found = [*_tables(facts), *_ways(facts, stall_s), *_looks(facts)]
    if not found and not facts.landed:
        found = [_said(facts, Rank.EMPTY, "quiet", "has no rows yet", "Numbers appear with its first batch.")]
    return sorted(found, key=lambda one: one.rank) or [_well(facts)]


def headline(standings: Mapping[str, Sequence[Standing]]) -> Headline:
    """The worst that is true of any pipeline; of several equally bad ones the first by name.

    Args:
        standings: per pipeline what `of` gives.
    """
    firsts = [standings[name][0] for name in sorted(standings)]
    wrong = [one for one in firsts if one.rank < Rank.WELL]
    if not wrong:
        return Headline(_all_well([one for one in firsts if one.rank == Rank.WELL]))
    worst = min(wrong, key=lambda one: one.rank)
    return Headline(worst, len({one.name for one in wrong if one.name != worst.name} - {""}))


def _all_well(well: Sequence[Standing]) -> Standing:
    if not well:
        return Standing(Rank.EMPTY, "quiet", "", "No rows yet", "Numbers appear here with the first batch.")
    if len(well) == 1:
        return well[0]
    detail = f"All {len(well)} pipelines make progress or have no work, and the last verdict on each is valid."
    return Standing(Rank.WELL, "good", "", "All pipelines are healthy", detail)


def _well(facts: Facts) -> Standing:
    verdict = facts.verdict
    if verdict is None:
        return _said(facts, Rank.WELL, "good", "is healthy", "")
    since = f"; {whole(verdict.since)} offsets were written since" if verdict.since else ""
    detail = f"{_verified(facts, verdict)}{since}.{_left_out(*verdict.left_out)}"
    return _said(facts, Rank.WELL, "good", "is healthy", detail)


def _left_out(objects: int, records: int) -> str:
    """What no verdict covers, as further sentences."""
    said = f" Topics, tables and columns that no model judges: {whole(objects)}." if objects else ""
    return said + (f" Output records that were not compared: {whole(records)}." if records else "")


def _verified(facts: Facts, verdict: Verdict) -> str:
    """When, in UTC: with the day where that is not today."""
    same_day = verdict.judged_at.date() == facts.now.date()
    return f"Verified at {verdict.judged_at:{'%H:%M:%S' if same_day else '%Y-%m-%d %H:%M:%S'}}"


def _tables(facts: Facts) -> Iterator[Standing]:
    """Whether the tables are right."""
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


def _ways(facts: Facts, stall_s: float) -> Iterator[Standing]:
    """Whether what waits moves."""
    if facts.silent:
        yield Standing(
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


def _looks(facts: Facts) -> Iterator[Standing]:
    """What somebody should look at although everything goes on."""
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
            continue  # it would be the first thing to say of every pipeline
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


def _dead(facts: Facts, dead: Dead) -> Standing:
    most = "" if dead.exact else "up to "
    what = "a dead letter" if dead.count == 1 else f"{most}{whole(dead.count)} dead letters"
    often = [f"{one.reason} ({whole(one.count)}\N{MULTIPLICATION SIGN})" for one in dead.failures[:1]]
    detail = sentence(often[0]) if often else "Its processor refused these records, each with a reason."
    return _said(facts, Rank.DEAD, "busy", f"has {what}", detail, f"onefold dead-letters list {facts.name}")


def _waits(waiting: Waiting, done: str) -> str:
    what = "1 record waits" if waiting.events == 1 else f"{whole(waiting.events)} records wait"
    oldest = "" if waiting.oldest_s is None else f", the oldest for {age(waiting.oldest_s)}"
    return f"{what} to be {done}{oldest}"


def _log_of(facts: Facts, who: str) -> str:
    """The command that shows the log of the first such service; elsewhere than in the embedded stack nobody knows where it is."""
    names = [service.name for service in facts.services if service.name.startswith(f"{who}-")]
    return f"onefold logs {names[0]}" if names else "onefold status"


def _said(facts: Facts, rank: Rank, tone: Tone, says: str, detail: str, command: str = "") -> Standing:
    return Standing(rank, tone, facts.name, says, detail, command)
