"""The content of a task's changelog partition, and the decoding of its records.

The first byte of the key distinguishes three kinds of records:

    s<key>   the state of a key (JSON); a null value deletes the state.
    p        the progress: the topic id and the next offset of each present and former input; the counts; and the time of the
             last tick.
    c        the quarantine: whether the next owner isolates records (see `batch_limit.Quarantine`).

State and progress of a transaction are in one partition, so a reader up to the high watermark has both or neither.
The progress also holds the version of the format (see `core.changelog_format`).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec, PartitionIdentity
from onefold.processor.core.changelog_format import DECIDED, ELASTIC, check_format
from onefold.processor.core.decision import Decision, ProposalKind
from onefold.processor.core.decision_log import ProposalBody
from onefold.processor.core.errors import Corrupted, Damaged, Refused
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import Change, Record, RecordCounts
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.state_store import STATE as STATE
from onefold.processor.runtime.state_store import MemoryStateStore

# Names of counts in the progress record that differ from the field names: release 0.1.0 reads and writes the stored names.
_STORED_NAMES = {"repartitioned": "forwarded"}
QUARANTINE_KEY = b"c"


class DecidedIn(NamedTuple):
    """The decision log of a task, and the position in the log.

    Attributes:
        log_id: the topic id of the log.
        offset: the log offset to read next; earlier decisions are in the changelog.
        opened: whether the opening is before `offset`.
    """

    log_id: str
    offset: int
    opened: bool


@dataclass
class TaskProgress:
    """The progress of a task.

    Attributes:
        topic_ids: the topic id of each input.
        offsets_next: the next offset to read of each input.
        counts: the number of records by outcome.
        transactions: the number of transactions; in a decision log, the version.
        decided_in: the decision log of the task. None: the task is decided by Kafka transactions.
        ticked_ms: the time of the last tick, in milliseconds since 1970, or 0.
        former: the topic id and the next offset of each former input. The states contain the former input's records, so the
            pipeline continues at the offset if the topic becomes an input again.
    """

    topic_ids: dict[str, str] = field(default_factory=dict)
    offsets_next: dict[str, int] = field(default_factory=dict)
    counts: RecordCounts = field(default_factory=RecordCounts)
    transactions: int = 0
    decided_in: DecidedIn | None = None
    ticked_ms: int = 0
    former: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def log_id(self) -> str:
        """The topic id of the task's decision log; empty without one."""
        return "" if self.decided_in is None else self.decided_in.log_id

    def encode(self, partitions: int = 0) -> bytes:
        """Encode the value of the progress record.

        Args:
            partitions: the number of input partitions, for `io.partitions` and `verify`. 0: omitted, as in older releases.
        """
        inputs = {
            topic: {"topic_id": self.topic_ids[topic], "next_offset": offset}
            for topic, offset in self.offsets_next.items()
        }
        counts = {_STORED_NAMES.get(name, name): count for name, count in self.counts._asdict().items()}
        body: dict[str, Any] = {
            "version": ELASTIC,
            "inputs": inputs,
            "counts": counts,
            "transactions": self.transactions,
        }
        if self.decided_in is not None:
            body |= {"version": DECIDED, "decided_in": self.decided_in._asdict()}
        if self.ticked_ms:
            # A release without this field drops the field, and has no timers either: no time passes in that release.
            body["ticked_ms"] = self.ticked_ms
        if self.former:
            # A release without this field drops the field, and would read a former input from the start again.
            body["former_inputs"] = {
                topic: {"topic_id": topic_id, "next_offset": offset}
                for topic, (topic_id, offset) in self.former.items()
            }
        if partitions:
            body["partitions"] = partitions
        return json.dumps(body).encode()

    @staticmethod
    def decode(data: bytes) -> "TaskProgress":
        """Decode the progress, without unknown fields.

        Raises:
            Corrupted: the bytes are no progress.
            Refused: a newer Onefold wrote the progress.
        """
        try:
            body = json.loads(data)
            check_format(body, "the changelog")
            inputs, counts = body["inputs"], body["counts"]
            return TaskProgress(
                {topic: at["topic_id"] for topic, at in inputs.items()},
                {topic: at["next_offset"] for topic, at in inputs.items()},
                RecordCounts(*(counts.get(_STORED_NAMES.get(name, name), 0) for name in RecordCounts._fields)),
                body["transactions"],
                DecidedIn(**body["decided_in"]) if "decided_in" in body else None,
                body.get("ticked_ms", 0),
                {topic: (at["topic_id"], at["next_offset"]) for topic, at in body.get("former_inputs", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupted(Code.CHANGELOG_WRONG, f"the changelog's progress record cannot be read: {error}") from error

    def advanced(self, offsets_next: Mapping[str, int], counts: RecordCounts, ticked_ms: int = 0) -> "TaskProgress":
        """The progress after one more transaction. Raises `Corrupted` if an offset would go back."""
        for topic, offset in offsets_next.items():
            if offset < self.offsets_next[topic]:
                raise Corrupted(
                    Code.CHANGELOG_WRONG,
                    f"progress of {topic} would go back from {self.offsets_next[topic]} to {offset}",
                )
        offsets = {**self.offsets_next, **offsets_next}
        return replace(
            self,
            offsets_next=offsets,
            counts=self.counts.plus(counts),
            transactions=self.transactions + 1,
            ticked_ms=max(self.ticked_ms, ticked_ms),
        )

    def after(self, decision: Decision) -> "TaskProgress":
        """The progress after a decision of the log: a step, an opening, or a close, after which the task is in no log.

        Raises:
            Corrupted: the task is in no decision log.
        """
        if self.decided_in is None:
            raise Corrupted(Code.CHANGELOG_WRONG, "a decision comes after the log was closed")
        body: ProposalBody = decision.proposal.body
        closed = decision.proposal.kind is ProposalKind.CLOSE
        inputs = decision.position.inputs
        return TaskProgress(
            {topic: at.topic_id for topic, at in inputs.items()},
            {topic: at.offset for topic, at in inputs.items()},
            self.counts.plus(body.counts),
            decision.position.version,
            None if closed else DecidedIn(self.log_id, decision.offset + 1, opened=True),
            max(self.ticked_ms, body.ticked_ms),
            self.former,
        )

    def same_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Raise `Refused` if an input topic was recreated, that is, if its topic id changed."""
        for topic, topic_id in topic_ids.items():
            known = self.topic_ids.get(topic, topic_id)
            if known != topic_id:
                raise Refused(
                    Code.TOPIC_RECREATED,
                    f"topic {topic} was deleted and created again (id {known} then, {topic_id} now): "
                    f"its records are not the ones behind the stored state. See `onefold docs reset`",
                )

    def checked(self, identities: Mapping[str, PartitionIdentity]) -> "TaskProgress":
        """Check the progress against the present topics, and adapt it to the present set of inputs.

        A new input begins at the first offset of its partition.

        Raises:
            Refused: a topic was recreated, or no longer holds the next records.
        """
        read = {topic: (self.topic_ids[topic], offset) for topic, offset in self.offsets_next.items()}
        known = self.former | read
        ids_known = replace(self, topic_ids={topic: topic_id for topic, (topic_id, _) in known.items()})
        ids_known.same_topics({topic: identity.topic_id for topic, identity in identities.items()})
        for topic, identity in identities.items():
            if topic not in known:
                continue
            _, offset = known[topic]
            if offset > identity.end:
                raise Refused(
                    Code.RECORDS_LOST,
                    f"topic {topic} ends at offset {identity.end}, but {offset} was reached before: the log lost records",
                )
            if offset < identity.start:
                raise Refused(
                    Code.RECORDS_DELETED,
                    f"topic {topic} starts at offset {identity.start}, but {offset} comes next: records were deleted unread",
                )
        now = {topic: known.get(topic, (at.topic_id, at.start)) for topic, at in identities.items()}
        return replace(
            self,
            topic_ids={topic: topic_id for topic, (topic_id, _) in now.items()},
            offsets_next={topic: offset for topic, (_, offset) in now.items()},
            former={topic: at for topic, at in known.items() if topic not in now},
        )


def behind(progress: TaskProgress, ends: Mapping[str, PartitionIdentity] | None) -> int | None:
    """The number of offsets from the progress to the given ends; None if the ends are unknown."""
    if ends is None:
        return None
    return sum(max(0, found.end - progress.offsets_next.get(topic, found.start)) for topic, found in ends.items())


def told(topology: Topology, others: Mapping[bytes, bytes | None]) -> tuple[TaskProgress, Quarantine]:
    """Decode progress and quarantine from `others`, the last changelog record of each key that is no state.

    Raises:
        Corrupted: no task writes such a record.
        Refused: a newer Onefold wrote the changelog.
    """
    progress, quarantine = TaskProgress(), Quarantine()
    # The progress first: its version decides whether this release can read the others.
    for key in sorted(others, key=lambda key: key != PROGRESS_KEY):
        last = others[key]
        if last is None:
            raise Corrupted(Code.CHANGELOG_WRONG, f"{topology.changelog} holds a deleted {key[:20]!r} record")
        if key == PROGRESS_KEY:
            progress = TaskProgress.decode(last)
        elif key == QUARANTINE_KEY:
            quarantine = Quarantine.decode(last)
        else:
            raise Corrupted(Code.CHANGELOG_WRONG, f"{topology.changelog} holds a record of unknown kind {key[:20]!r}")
    return progress, quarantine


def in_memory(topology: Topology, codec: Codec, states: Mapping[bytes, bytes]) -> MemoryStateStore:
    """Make the store from the last changelog record of each state.

    Raises `Refused` if a record does not fit the state type of the topology.
    """
    with fitting():
        return MemoryStateStore(
            {key[len(STATE) :].decode(): codec.decode_state(topology, value) for key, value in states.items()}
        )


@contextmanager
def fitting() -> Iterator[None]:
    """Raise `Refused` for a stored state that does not fit the topology: a restart of the task would not help.

    Another version of the pipeline wrote the state.
    """
    try:
        yield
    except Damaged:
        raise
    except Corrupted as error:
        raise Refused(
            Code.STATE_UNREADABLE,
            f"{error}. Another version wrote it: a new field needs a default, and a renamed one keeps the name that is stored "
            f"(`onefold docs evolution`)",
        ) from error


def changes_of(states: Mapping[bytes, bytes | None], topology: Topology, codec: Codec) -> Mapping[str, Change]:
    """Decode the changes from changelog records of states. The causing records are unknown, so a placeholder replaces them."""
    nobody = Record("", 0, 0, None, None)
    return {
        key[len(STATE) :].decode(): (None if value is None else codec.decode_state(topology, value), nobody)
        for key, value in states.items()
    }
