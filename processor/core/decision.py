"""The decision: which of several replicas' proposals came true, for every reader alike.

Hot-hot, every replica of a task computes. None leads, and none waits for another. Each appends what it has computed, a
*proposal*, to the task's partition of the decision log, and reads the log back:

    proposal = computed(state, records)             from the position on
    log.append(proposal)                            its acknowledgement means nothing
    decision = history.take(offset, proposal)       of each record read back, whoever wrote it: None, it lost
    state.apply(decision.proposal.body)             the winner's bytes, never one's own

The rule: of a task the first proposal wins that carries the version that is expected, and starts where the decided inputs
end. It is the compare-and-swap of a versioned cell, on a log: an append that comes late or twice, of a replica that hung, was
thought dead or is alone with its opinion, finds that the version has moved on.

**One history.** `decide` looks at the position and the proposal, and at nothing else: no clock, no lease, not who asks. The log
has one order for all, so whoever has read the same records from the same position on has the same history. What a longer log
adds comes after it.

**Every input once, in order.** A decided proposal takes each input from where the last one left it, of the very same topic.

**Both the version and the start.** A replica that adopted a version, and reads on from where its own consumer stood, carries the
right version and another start: it would leave a hole. What was computed before the log was closed may start where the log
was opened again, when nothing was read in between; but the state, or the handler, may be another one: its version is stale.

**Of this very log.** A proposal names the log that it was computed for. Started over, a pipeline comes to the same versions and
offsets again, with other states perhaps; what a process that was frozen meanwhile had under way arrives in the new log.

**Nobody is waited for.** Whoever has read to the end and appends a proposal finds, reading on, that the version was decided: by
its own proposal or by one before it.

**Elastic and back.** A task has one owner of its next version: the changelog or the log. The changelog's number of transactions
is the version, so each number is given once.
- To the log: a fenced transaction of the changelog says so, and counts one. From then on the changelog gives no number away;
  what a publisher writes there is copied from the log, with the log's versions. Whoever finds it appends `OPEN`, naming version
  and offsets; the first one is decided, however many say the same.
- To the changelog: any replica proposes `CLOSE`. It competes like any other proposal and is a version of its own. After it
  nothing is decided. Whoever has read it brings the changelog to that position, by a fenced transaction; from there it counts.

So an opening has a greater version than the close before it: what was appended late, or by someone who did not ask the
changelog, has not. An opening that was never decided is no way back: it is opened, then closed. And who reads nothing but the
log learns from the opening which offsets the changelog's owner took in between.

**Where a reader may begin.** At what it stored: a position, and the offset of the log up to which that is all. Or at offset 0 of
a log that still has it. Anything else cannot be known: a proposal that fits may have lost to one that retention has removed.
The log holds no markers and is never compacted, so a missing offset is a missing record; `begin` and `History` refuse.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.abc import Identity
from onefold.processor.core.errors import Refused


class Kind(StrEnum):
    """What a proposal is for."""

    STEP = "step"
    OPEN = "open"
    CLOSE = "close"


class Range(NamedTuple):
    """Offsets [start, end) of one partition of an input. Not every offset has a record: markers take some too."""

    topic_id: str
    start: int
    end: int


class Next(NamedTuple):
    """The offset of an input to read next, and the id of the topic that it belongs to."""

    topic_id: str
    offset: int


class Position(NamedTuple):
    """Where a task stands.

    Attributes:
        version: how many decisions there have been, the changelog's transactions among them. The next proposal carries it.
        inputs: per input topic, what to read next.
        closed: the changelog has the task, and nothing is decided here.
    """

    version: int
    inputs: Mapping[str, Next]
    closed: bool = False


class Proposal(NamedTuple):
    """What one replica would have come true.

    Attributes:
        task: the partition number of the inputs.
        version: that of the position that it was computed at.
        inputs: per input topic, what it reads. An opening or a close reads nothing: its ranges are empty, and say where.
        proposer: whose it is, for people. The rule does not look at it.
        body: what it does: order of the records, outputs, state changes. The rule does not look at it.
        log_id: of the log that it was computed for. Empty: an earlier Onefold wrote it, which did not say so.
    """

    task: int
    version: int
    inputs: Mapping[str, Range]
    proposer: str
    body: Any = None
    kind: Kind = Kind.STEP
    log_id: str = ""


class Decision(NamedTuple):
    """A proposal that came true, its offset in the log, and the position after it."""

    offset: int
    proposal: Proposal
    position: Position


class Standing(NamedTuple):
    """What a reader knows of a task, and stores.

    Attributes:
        log_id: the id of the decision log's topic.
        offset: of the log, to read next.
        position: what all that came before it amounts to. None: the task was never opened here.
    """

    log_id: str
    offset: int
    position: Position | None


def decide(position: Position | None, proposal: Proposal) -> Position | None:
    """The position after the proposal, or None: it lost.

    Args:
        position: of the proposal's task. None: the task was never opened.
        proposal: the next one in the log.
    """
    if proposal.kind is Kind.OPEN:
        return _opened(position, proposal)
    if position is None or position.closed or proposal.version != position.version:
        return None
    if proposal.inputs.keys() != position.inputs.keys():
        return None
    for topic, (topic_id, start, end) in proposal.inputs.items():
        if (topic_id, start) != position.inputs[topic] or end < start:
            return None
    reads = any(start < end for _, start, end in proposal.inputs.values())
    if reads != (proposal.kind is Kind.STEP):
        return None
    return Position(position.version + 1, _ends(proposal), closed=proposal.kind is Kind.CLOSE)


def _opened(position: Position | None, proposal: Proposal) -> Position | None:
    """Inputs may come and go while the log is closed; of one that stays the offset may not go back."""
    if any(start != end for _, start, end in proposal.inputs.values()):
        return None
    if position is not None:
        if not position.closed or proposal.version <= position.version:
            return None
        for topic, (topic_id, start, _) in proposal.inputs.items():
            known = position.inputs.get(topic)
            if known and (known.topic_id != topic_id or start < known.offset):
                return None
    return Position(proposal.version, _ends(proposal))


def _ends(proposal: Proposal) -> dict[str, Next]:
    return {topic: Next(topic_id, end) for topic, (topic_id, _, end) in proposal.inputs.items()}


def begin(log: Identity, stored: Standing | None) -> Standing:
    """What a reader knows before it reads a partition of the decision log.

    Args:
        log: which topic that is now, and which offsets it holds.
        stored: what the reader knew last. None: nothing.

    Raises:
        Refused: what is decided in this log cannot be known from there.
    """
    if stored is None:
        if log.start > 0:
            raise Refused(
                Code.DECISIONS_LOST,
                f"the decision log starts at offset {log.start}: what was decided before cannot be known from it. "
                f"Start from a copy that knows",
            )
        return Standing(log.topic_id, 0, None)
    if stored.log_id != log.topic_id:
        raise Refused(
            Code.DECISIONS_LOST,
            f"the decision log was deleted and created again, or an earlier version let tasks share it "
            f"({stored.log_id} then, {log.topic_id} now): the log does not have the next decision",
        )
    if stored.offset > log.end:
        raise Refused(
            Code.DECISIONS_LOST,
            f"the decision log ends at offset {log.end}, but {stored.offset} was reached before: it lost records",
        )
    if stored.offset < log.start:
        raise Refused(
            Code.DECISIONS_LOST,
            f"the decision log starts at offset {log.start}, but {stored.offset} comes next: decisions were deleted unread. "
            f"See `onefold docs reset`",
        )
    return stored


class History:
    """What came true for a task, out of its partition of the decision log.

    Attributes:
        offset_next: of the log, to read next.
    """

    def __init__(self, task: int, standing: Standing) -> None:
        self._task = task
        self._log_id, self.offset_next, self._position = standing

    def take(self, offset: int, proposal: Proposal | None) -> Decision | None:
        """The next record of the log; None when nothing came true by it.

        Args:
            offset: its own; no record is left out, whosever it is.
            proposal: None for bytes that no version of the program would call a proposal. What only this version cannot
                read is not that: another reader can.

        Raises:
            Refused: there are records in between that were not read.
        """
        if offset != self.offset_next:
            raise Refused(
                Code.DECISIONS_LOST,
                f"offset {self.offset_next} of the decision log comes next, and {offset} came: records in between are missing",
            )
        self.offset_next = offset + 1
        if proposal is None:
            return None
        if proposal.task != self._task or proposal.log_id not in ("", self._log_id):
            return None
        position = decide(self._position, proposal)
        if position is None:
            return None
        self._position = position
        return Decision(offset, proposal, position)
