"""What a decision log says to the sink: which of its records came true, and what these write.

The rule is the replicas' own, `processor/core/decision.py`, and so is the reading of a proposal: two readings of one log would
sooner or later be two histories. This is the only module of the sink that knows them.

A row that is landed from the log has its *place* there as its `offset`: the offset of the decision, and which of its writes
it is. So rows of one decision differ in it, and a later write has a greater one, as merges expect of an offset.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.decision import Decision, History, Kind, Next, Position, Proposal, Range, Standing
from onefold.processor.core.decision_log import Note
from onefold.processor.core.errors import Refused as NotDecidable
from onefold.processor.io.proposals import AvroProposals
from onefold.spark_sink.errors import Refused

#: A record of the log holds at most some tens of MB, so never two million writes; offsets have 42 bits left.
PLACE_BITS = 21

#: What the ledger holds of a partition of the log besides its next offset: {"version", "closed", "inputs"}, or None.
Decided = Mapping[str, Any] | None

_PROPOSALS = AvroProposals()


def log_of(domain: str) -> str:
    """The topic in which the replicas of a pipeline decide."""
    return f"{domain}.decisions"


def place(offset: int, number: int = 0) -> int:
    """Of the write with that number (from 0, of all writes of the decision) of the decision at that offset."""
    return offset << PLACE_BITS | number


def offset_of(at: int) -> int:
    """The decision's offset, of a place."""
    return at >> PLACE_BITS


class Seen(NamedTuple):
    """A record of the log as whoever decides needs it. `written`: how many bytes it has for other topics."""

    offset: int
    fingerprint: int
    written: int
    proposal: Proposal | None


@dataclass(frozen=True)
class Decisions:
    """What came true in [start, end) of a partition of the log.

    Attributes:
        offsets: of the decisions.
        fingerprints: of all records, one after the other from `start` on.
        written: how many bytes the decisions have for other topics.
    """

    start: int
    end: int
    offsets: tuple[int, ...]
    fingerprints: tuple[int, ...]
    written: int
    before: Decided
    positions: tuple[Decided, ...]

    def decided_at(self, offset: int) -> Decided:
        """What all records below the offset amount to."""
        known = bisect_right(self.offsets, offset - 1)
        return self.positions[known - 1] if known else self.before

    def until(self, end: int) -> "Decisions":
        """The same of [start, end). What they write in all of it is an upper bound there."""
        known = bisect_right(self.offsets, end - 1)
        return replace(
            self,
            end=end,
            offsets=self.offsets[:known],
            fingerprints=self.fingerprints[: end - self.start],
            positions=self.positions[:known],
        )

    @property
    def after(self) -> Decided:
        """What all of it amounts to."""
        return self.decided_at(self.end)


def summary(value: bytes | None) -> tuple[int, str | None]:
    """The bytes that a record of the log has for other topics, and the proposal without its body, as a text for `seen`."""
    try:
        record = _PROPOSALS.decode(value)
    except NotDecidable as error:
        return 0, json.dumps({"refused": str(error)})
    if record is None or isinstance(record, Note):
        return 0, None
    inputs = {topic: list(part) for topic, part in record.inputs.items()}
    about = {"task": record.task, "version": record.version, "kind": record.kind.value, "inputs": inputs}
    return len(record.body.writes), json.dumps({**about, "proposer": record.proposer, "log_id": record.log_id})


def seen(offset: int, fingerprint: int, written: int, about: str | None) -> Seen:
    """A record by its `summary`. Raises `Refused` for one of a newer Onefold."""
    if about is None:
        return Seen(offset, fingerprint, 0, None)
    read = json.loads(about)
    if "refused" in read:
        raise Refused(Code.NEWER_VERSION, read["refused"])
    inputs = {topic: Range(*part) for topic, part in read["inputs"].items()}
    kind = Kind(read["kind"])
    proposal = Proposal(read["task"], read["version"], inputs, read["proposer"], None, kind, read["log_id"])
    return Seen(offset, fingerprint, written, proposal)


def decide(
    topic: str, partition: int, topic_id: str, before: Decided, offsets: range, records: Iterable[Seen]
) -> Decisions:
    """What came true in a partition of the log, which decides the task of its own number.

    Args:
        before: what all records below `offsets` amount to.
        offsets: of `records`; every one of them has a record.

    Raises:
        Refused: a record is missing; or the task was decided elsewhere meanwhile, and what came true then is not in the log.
    """
    history = History({partition: Standing(topic_id, offsets.start, _position(before))})
    version, fingerprints, decisions, written = _version(before), [], list[Decision](), 0
    try:
        for record in sorted(records, key=lambda record: record.offset):
            fingerprints.append(record.fingerprint)
            _refuse_shared(f"{topic}/{partition}@{record.offset}", partition, record.proposal)
            decision = history.take(record.offset, record.proposal)
            if decision is None:
                continue
            if decision.proposal.kind is Kind.OPEN and decision.proposal.version != version + 1:
                raise Refused(
                    Code.TABLES_OF_OTHER_TOPICS,
                    f"task {partition} was decided by Kafka transactions before {topic}/{partition}@{record.offset}, and "
                    f"their records are in its output topics alone: write the tables from those topics",
                )
            version = decision.position.version
            decisions.append(decision)
            written += record.written
    except NotDecidable as error:
        raise Refused(error.code, f"{topic}/{partition}: {error}") from error
    if history.offset_next != offsets.stop:
        raise Refused(
            Code.DECISIONS_LOST,
            f"{topic}/{partition} gives no record at offset {history.offset_next}, and should: it lost records",
        )
    return Decisions(
        offsets.start,
        offsets.stop,
        tuple(decision.offset for decision in decisions),
        tuple(fingerprints),
        written,
        before,
        tuple(_stored(decision.position) for decision in decisions),
    )


def _refuse_shared(where: str, partition: int, proposal: Proposal | None) -> None:
    """Every task that is decided in a log is opened there."""
    if proposal is not None and proposal.kind is Kind.OPEN and proposal.task != partition:
        raise Refused(
            Code.TABLES_OF_OTHER_TOPICS,
            f"{where} opens task {proposal.task}: tables cannot be filled from a log that tasks share; write the tables "
            f"from its output topics",
        )


def refuse_closed(topic: str, decided: Mapping[int, Decided]) -> None:
    """Raise `Refused` when a task is no longer decided in the log. `decided`: at the end of each partition."""
    for partition, at in sorted(decided.items()):
        if at is not None and at["closed"]:
            raise Refused(
                Code.TABLES_OF_OTHER_TOPICS,
                f"task {partition} went back to Kafka transactions, and what it writes now is in its output topics alone, while "
                f"the tables are filled from {topic}: start its replicas again",
            )


def write_at(value: bytes | None, number: int) -> tuple[bytes | None, bytes | None, frozenset[str]]:
    """Key, value and the names of the headers of a write of a decision."""
    proposal = _PROPOSALS.decode(value)
    assert isinstance(proposal, Proposal), "only of a decision there are rows"
    writes = _PROPOSALS.writes(proposal.body.writes)
    _, _, key, written, headers = writes[number]
    return key, written, frozenset(name for name, _ in headers or ())


def _position(decided: Decided) -> Position | None:
    if decided is None:
        return None
    inputs = {topic: Next(at["topic_id"], at["next_offset"]) for topic, at in decided["inputs"].items()}
    return Position(decided["version"], inputs, decided["closed"])


def _stored(position: Position) -> Decided:
    inputs = {topic: {"topic_id": at.topic_id, "next_offset": at.offset} for topic, at in position.inputs.items()}
    return {"version": position.version, "closed": position.closed, "inputs": inputs}


def _version(decided: Decided) -> int:
    return decided["version"] if decided is not None else 0
