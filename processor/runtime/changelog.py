"""What the changelog partition of a task holds, and reading it back.

Three kinds of records, told apart by the first byte of the key:

    s<key>   the state of a key (JSON); a null value forgets the key
    p        the progress: per input the topic's id and the offset to read next, also of former inputs; the counts; and the time
             of the last tick
    c        how careful the next owner should be (see `batch_limit.Quarantine`)

State and progress of one transaction are in one partition, so whoever reads up to the high watermark has both or neither.
The progress also says which format all of it is in (see `core.stored`).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec, Identity
from onefold.processor.core.decision import Decision, Kind
from onefold.processor.core.decision_log import Body
from onefold.processor.core.errors import Corrupted, Damaged, Refused
from onefold.processor.core.stored import DECIDED, ELASTIC, check_format
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import Change, Counts, Record
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.store import STATE as STATE
from onefold.processor.runtime.store import Store

# What the counts are called in the progress record, where that is not the field's name: 0.1.0 reads it, and writes it.
_STORED_NAMES = {"repartitioned": "forwarded"}
QUARANTINE_KEY = b"c"


class DecidedIn(NamedTuple):
    """The decision log that has the task.

    Attributes:
        log_id: the id of its topic.
        offset: of the log, to read next; what came before is in the changelog.
        opened: whether the opening is among that.
    """

    log_id: str
    offset: int
    opened: bool


@dataclass
class Progress:
    """Where a task stands: per topic that it reads its id and the offset to read next; how many records ended how.

    Attributes:
        transactions: how many there have been; in a decision log, the version.
        decided_in: None: the task is decided by Kafka transactions.
        ticked_ms: the time of the last tick, in milliseconds since 1970, or 0.
        former: per topic that it has read and reads no more its id and the offset to read next. The states hold its records: if
            the pipeline reads it again, it goes on there.
    """

    topic_ids: dict[str, str] = field(default_factory=dict)
    offsets_next: dict[str, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    transactions: int = 0
    decided_in: DecidedIn | None = None
    ticked_ms: int = 0
    former: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def log_id(self) -> str:
        """Of the decision log that the task is decided in; empty: in none."""
        return "" if self.decided_in is None else self.decided_in.log_id

    def encode(self, partitions: int = 0) -> bytes:
        """The value of the progress record.

        Args:
            partitions: of the inputs, for `io.partitions` and `verify`; 0: not named, as by releases before this field.
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
            # A version without it has no ticks either: it writes the progress of a pipeline whose time stands still.
            body["ticked_ms"] = self.ticked_ms
        if self.former:
            # A version without this field drops it, and reads such a topic from its start again.
            body["former_inputs"] = {
                topic: {"topic_id": topic_id, "next_offset": offset}
                for topic, (topic_id, offset) in self.former.items()
            }
        if partitions:
            body["partitions"] = partitions
        return json.dumps(body).encode()

    @staticmethod
    def decode(data: bytes) -> "Progress":
        """The progress; fields that are not known are left out.

        Raises:
            Corrupted: the bytes are none.
            Refused: a newer Onefold wrote it.
        """
        try:
            body = json.loads(data)
            check_format(body, "the changelog")
            inputs, counts = body["inputs"], body["counts"]
            return Progress(
                {topic: at["topic_id"] for topic, at in inputs.items()},
                {topic: at["next_offset"] for topic, at in inputs.items()},
                Counts(*(counts.get(_STORED_NAMES.get(name, name), 0) for name in Counts._fields)),
                body["transactions"],
                DecidedIn(**body["decided_in"]) if "decided_in" in body else None,
                body.get("ticked_ms", 0),
                {topic: (at["topic_id"], at["next_offset"]) for topic, at in body.get("former_inputs", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupted(Code.CHANGELOG_WRONG, f"the changelog's progress record cannot be read: {error}") from error

    def advanced(self, offsets_next: Mapping[str, int], counts: Counts, ticked_ms: int = 0) -> "Progress":
        """The progress after one more transaction. It never goes back."""
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

    def after(self, decision: Decision) -> "Progress":
        """The progress after a decision of the log, by which the task goes on, or leaves the log.

        Raises:
            Corrupted: no log has the task.
        """
        if self.decided_in is None:
            raise Corrupted(Code.CHANGELOG_WRONG, "a decision comes after the log was closed")
        body: Body = decision.proposal.body
        closed = decision.proposal.kind is Kind.CLOSE
        inputs = decision.position.inputs
        return Progress(
            {topic: at.topic_id for topic, at in inputs.items()},
            {topic: at.offset for topic, at in inputs.items()},
            self.counts.plus(body.counts),
            decision.position.version,
            None if closed else DecidedIn(self.log_id, decision.offset + 1, opened=True),
            max(self.ticked_ms, body.ticked_ms),
            self.former,
        )

    def same_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Raises `Refused` when the name of an input stands for another topic than the one that was read before."""
        for topic, topic_id in topic_ids.items():
            known = self.topic_ids.get(topic, topic_id)
            if known != topic_id:
                raise Refused(
                    Code.TOPIC_RECREATED,
                    f"topic {topic} was deleted and created again (id {known} then, {topic_id} now): "
                    f"its records are not the ones behind the stored state. See `onefold docs reset`",
                )

    def checked(self, identities: Mapping[str, Identity]) -> "Progress":
        """The same progress, now known to belong to these very topics; inputs seen for the first time start at their start.

        Raises:
            Refused: a topic is not the one that was read before, or no longer holds what comes next.
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


def behind(progress: Progress, ends: Mapping[str, Identity] | None) -> int | None:
    """How many offsets there are from the progress to these ends; None when they are not known."""
    if ends is None:
        return None
    return sum(max(0, found.end - progress.offsets_next.get(topic, found.start)) for topic, found in ends.items())


def told(topology: Topology, others: Mapping[bytes, bytes | None]) -> tuple[Progress, Quarantine]:
    """What the last records of the changelog say that are no states, by their keys.

    Raises:
        Corrupted: a record is not what a task writes.
        Refused: a newer Onefold wrote the changelog.
    """
    progress, quarantine = Progress(), Quarantine()
    # The progress first: it says whether the rest can be read at all.
    for key in sorted(others, key=lambda key: key != PROGRESS_KEY):
        last = others[key]
        if last is None:
            raise Corrupted(Code.CHANGELOG_WRONG, f"{topology.changelog} holds a deleted {key[:20]!r} record")
        if key == PROGRESS_KEY:
            progress = Progress.decode(last)
        elif key == QUARANTINE_KEY:
            quarantine = Quarantine.decode(last)
        else:
            raise Corrupted(Code.CHANGELOG_WRONG, f"{topology.changelog} holds a record of unknown kind {key[:20]!r}")
    return progress, quarantine


def in_memory(topology: Topology, codec: Codec, states: Mapping[bytes, bytes]) -> Store:
    """The store of these changelog records of states: decoded once a key, after the last record of it is known. Raises `Refused`
    for one that the topology's state cannot be.
    """
    with fitting():
        return Store({key[len(STATE) :].decode(): codec.decode_state(topology, value) for key, value in states.items()})


@contextmanager
def fitting() -> Iterator[None]:
    """Stored states are read here. What is none of the topology's was written by another version of the program: to begin again
    does not help.
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
    """What changelog records of states, by their keys, change; without the records that did."""
    nobody = Record("", 0, 0, None, None)
    return {
        key[len(STATE) :].decode(): (None if value is None else codec.decode_state(topology, value), nobody)
        for key, value in states.items()
    }
