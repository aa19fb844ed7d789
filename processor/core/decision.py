"""The decision rule of active-active replicas: accept or reject a proposal, with the same result for every reader.

With active-active replicas, every replica of a task computes; there is no leader. Each replica appends its result, a
*proposal*, to the task's partition of the decision log, and reads the log back:

    proposal = computed(state, records)             from the position
    log.append(proposal)                            ignore the result
    decision = history.take(offset, proposal)       for each record read
    state.apply(decision.proposal.body)             if accepted

The rule accepts the first proposal of a task with the expected version and with starts equal to the ends of the decided
inputs. The rule is the compare-and-swap of a versioned cell, on a log. A late or repeated append, from a replica that hung, was
presumed dead or is partitioned from its peers, has an old version.

**One history.** `decide` depends on the position and the proposal only: no clock, no lease, no identity of the reader. The log
has one order for all readers, so readers of the same records from the same position have the same history. Further
records only extend the history.

**Every input once, in order.** An accepted proposal continues each input at the end of the previous one, in the same topic.

**Both version and start.** A replica that adopted a version but continues from its own consumer's offset has the right version
and a wrong start, and would skip records. A proposal from before the log was closed may have the right start after the log was
opened again, if no input was read in between. But the state or the handler may have changed: the version is stale.

**The id of the log.** A proposal names its log. After a reset, a pipeline reaches the same versions and offsets again, perhaps
with other states. A late append from a process that was paused during the reset arrives in the new log.

**No waiting.** A replica that reads to the end, appends a proposal and reads on will find the version decided, by
its own proposal or by an earlier one.

**Between one owner and replicas.** Either the changelog or the log assigns a task's next version. The version is the number of
the changelog's transactions, so each number is assigned once.
- To the log: a transaction of the changelog, under the task's transactional id, records the change and counts as one. Then the
  changelog assigns no more numbers: a publisher copies the log's decisions into the changelog, with the log's versions. Any
  replica that reads the change appends `OPEN` with version and offsets. The rule accepts the first and rejects duplicates.
- To the changelog: any replica proposes `CLOSE`, which competes like other proposals and has a version of its own. After
  `CLOSE` the log accepts no step. A process that has read the `CLOSE` brings the changelog to the closing position, in a
  transaction under the transactional id. From there the changelog counts.

Therefore an opening has a greater version than the close before. A late append, or one from a replica that did not read the
changelog, has a smaller version. A task whose log was never opened is first opened, then closed. A reader of
the log alone learns from the opening which offsets the changelog's owner processed in between.

**Where a reader may begin.** At its stored position and the log offset that belongs to it, or at offset 0 if the log still has
the record. From another offset the result is unknown: a matching proposal may have lost to a proposal that retention has
removed. The log has no transaction markers and no compaction, so a missing offset is a missing record. `begin` and
`DecisionHistory` then raise `Refused`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import Refused


class ProposalKind(StrEnum):
    """The purpose of a proposal."""

    STEP = "step"
    OPEN = "open"
    CLOSE = "close"


class Range(NamedTuple):
    """Offsets [start, end) of one partition of an input. Some offsets are transaction markers, without a record."""

    topic_id: str
    start: int
    end: int


class InputPosition(NamedTuple):
    """The next offset to read of an input, and the id of the input's topic."""

    topic_id: str
    offset: int


class TaskPosition(NamedTuple):
    """The position of a task.

    Attributes:
        version: the number of decisions so far, including the changelog's transactions. The next proposal has this version.
        inputs: the next offset to read, per input topic.
        closed: the changelog decides for the task, and the log accepts only an opening.
    """

    version: int
    inputs: Mapping[str, InputPosition]
    closed: bool = False


class Proposal(NamedTuple):
    """The result that one replica proposes.

    Attributes:
        task: the partition number of the inputs.
        version: the version of the position at which the replica computed the proposal.
        inputs: the offsets read, per input topic. An opening or a close has empty ranges at the task's position.
        proposer: the replica's name, for people. The rule ignores the name.
        body: order of the records, outputs, state changes. The rule ignores the body.
        log_id: the id of the log that the proposal is for. Empty in a proposal of an early Onefold, without the id.
    """

    task: int
    version: int
    inputs: Mapping[str, Range]
    proposer: str
    body: Any = None
    kind: ProposalKind = ProposalKind.STEP
    log_id: str = ""


class Decision(NamedTuple):
    """An accepted proposal, its offset in the log, and the position after the proposal."""

    offset: int
    proposal: Proposal
    position: TaskPosition


class LogPosition(NamedTuple):
    """The stored knowledge of a log's reader about a task.

    Attributes:
        log_id: the id of the decision log's topic.
        offset: the next offset to read of the log.
        position: the position after all earlier records. None: the task was never opened in this log.
    """

    log_id: str
    offset: int
    position: TaskPosition | None


def decide(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """Return the position after the proposal, or None if the proposal is rejected.

    Args:
        position: the position of the proposal's task. None: the task was never opened.
        proposal: the next one in the log.
    """
    if proposal.kind is ProposalKind.OPEN:
        return _opened(position, proposal)
    if position is None or position.closed or proposal.version != position.version:
        return None
    if proposal.inputs.keys() != position.inputs.keys():
        return None
    for topic, (topic_id, start, end) in proposal.inputs.items():
        if (topic_id, start) != position.inputs[topic] or end < start:
            return None
    reads = any(start < end for _, start, end in proposal.inputs.values())
    if reads != (proposal.kind is ProposalKind.STEP):
        return None
    return TaskPosition(position.version + 1, _ends(proposal), closed=proposal.kind is ProposalKind.CLOSE)


def _opened(position: TaskPosition | None, proposal: Proposal) -> TaskPosition | None:
    """Decide on an opening. The set of inputs may have changed while the log was closed, but no offset may go back."""
    if any(start != end for _, start, end in proposal.inputs.values()):
        return None
    if position is not None:
        if not position.closed or proposal.version <= position.version:
            return None
        for topic, (topic_id, start, _) in proposal.inputs.items():
            known = position.inputs.get(topic)
            if known and (known.topic_id != topic_id or start < known.offset):
                return None
    return TaskPosition(proposal.version, _ends(proposal))


def _ends(proposal: Proposal) -> dict[str, InputPosition]:
    return {topic: InputPosition(topic_id, end) for topic, (topic_id, _, end) in proposal.inputs.items()}


def begin(log: PartitionIdentity, stored: LogPosition | None) -> LogPosition:
    """Return the position at which a reader of the decision log begins.

    Args:
        log: the present topic of the log, and the offsets in the partition.
        stored: the reader's last stored position. None: nothing is stored.

    Raises:
        Refused: the decisions in this log are unknown from the stored position.
    """
    if stored is None:
        if log.start > 0:
            raise Refused(
                Code.DECISIONS_LOST,
                f"the decision log starts at offset {log.start}: what was decided before cannot be known from it. "
                f"Start from a copy that knows",
            )
        return LogPosition(log.topic_id, 0, None)
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


class DecisionHistory:
    """The accepted proposals of a task, from its partition of the decision log.

    Attributes:
        offset_next: the next offset to read of the log.
    """

    def __init__(self, task: int, standing: LogPosition) -> None:
        self._task = task
        self._log_id, self.offset_next, self._position = standing

    def take(self, offset: int, proposal: Proposal | None) -> Decision | None:
        """Take the next record of the log; return the decision, or None if the record decides nothing.

        Args:
            offset: the record's offset. The caller must pass every record, from any replica.
            proposal: None for bytes that no version of Onefold would read as a proposal. For a newer version's proposal the
                caller must not pass None, since other readers can read the proposal.

        Raises:
            Refused: the record's offset is not the next.
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
