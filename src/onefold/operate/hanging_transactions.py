"""Find open transactions that block consumers of committed records. The last stable offset of a partition cannot advance beyond
the start of an open transaction, so processor and sink do not read the records after it. The partition looks drained, but is
not.

The records do not name the transaction: librdkafka gives no producer ids, and has neither DescribeProducers nor
ListTransactions. Kafka's transaction log `__transaction_state` has the start and the partitions of each transactional id, in
Kafka's storage format, versions 0 and 1. Without the right to read the log, the user gets partition and offset, the arguments
of Kafka's own tool (docs/operating.md).

The log also has the decisions. A committed transaction without a commit marker (KAFKA-20734) looks open, and an abort would
remove records that the application considers committed.

Kafka's client is imported only for a request.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from onefold import kafka_reader
from onefold.config.settings import Settings
from onefold.operate import offsets, pipelines, record_reader
from onefold.operate.offsets import Place
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading
from onefold.processor.core.topology import Topology

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

# Much longer than a healthy transaction. The broker aborts a processor's own transaction after 15 s.
HELD_S = 10.0
STATE_TOPIC = "__transaction_state"
# Kafka logs a transaction before its first record. This is the allowed clock difference.
_CLOCKS_S = 60.0
# The oldest log entries to read. The broker's default limit for a transaction is 15 minutes.
_OPEN_MAX_S = 86_400.0
# For each of the two readings.
_READ_S = 3.0
# Log entries to read: a busy cluster writes thousands each second.
_ENTRIES_MAX = 200_000
# Kafka's TransactionState: open, or decided but not yet marked in all partitions.
_OPEN, _TO_COMMIT, _TO_ABORT = 1, 2, 3


class Held(NamedTuple):
    """A partition with an open transaction.

    Attributes:
        offset: the last stable offset, the start of the transaction.
        hidden: the number of blocked offsets after the last stable offset.
        transactional_id: of the transaction; None: Kafka's transaction log is unreadable, or lacks the transaction.
        age_s: seconds since the start of the transaction; without an id since the first record.
        committed: whether the transaction may have been committed, according to Kafka's transaction log.
    """

    topic: str
    partition: int
    offset: int
    hidden: int
    transactional_id: str | None
    age_s: float
    committed: bool = False

    def __str__(self) -> str:
        who = f"the transaction of {self.transactional_id}" if self.transactional_id is not None else "a transaction"
        if self.committed:
            return (
                f"{self.topic}/{self.partition} at offset {self.offset}: {who} blocks {self.hidden:,} offsets for "
                f"{self.age_s:,.0f} s, and may have been committed. Aborting it would remove what was: see "
                f"`onefold docs operating`, a commit marker is lost"
            )
        return (
            f"{self.topic}/{self.partition} at offset {self.offset}: {who} is open for {self.age_s:,.0f} s and blocks "
            f"{self.hidden:,} offsets"
        )

    @property
    def remedy(self) -> str:
        """The command that ends the transaction; for a possible commit the command that lists the producers of the partition."""
        if self.committed:
            return f"onefold kafka transactions describe-producers --topic {self.topic} --partition {self.partition}"
        return (
            f"onefold kafka transactions abort --topic {self.topic} --partition {self.partition} "
            f"--start-offset {self.offset}"
        )


class HangingTransaction(NamedTuple):
    """A log entry for a transactional id that has written records and is not marked in all partitions.

    Attributes:
        since_ms: the start of the transaction, in milliseconds since 1970.
        places: the partitions of the transaction.
        decided_ms: when commit or abort was decided; None: the transaction is open.
        committed: whether the decision is a commit.
    """

    transactional_id: str
    since_ms: int
    places: frozenset[Place]
    decided_ms: int | None = None
    committed: bool = False


class Entered(NamedTuple):
    """The contents of Kafka's transaction log: for each id the last entry that is not marked in all partitions; and all
    decisions.
    """

    last: list[HangingTransaction]
    decided: list[HangingTransaction]

    def owner(self, place: Place, first_ms: int) -> tuple[HangingTransaction | None, bool]:
        """The transaction that blocks a partition, and whether the blocked records may be committed. `first_ms` is the time of
        the first blocked record. The transaction is None if the log does not show it.

        An unmarked transaction blocks the partition if it began before that time. If it began later, either the producer chose
        an older record time, or the transaction is a later one of the same program. Then decisions since that time show the
        possible commits.
        """
        latest_ms = first_ms + _CLOCKS_S * 1000
        decided = [
            one
            for one in self.decided
            if place in one.places
            and one.since_ms <= latest_ms
            and one.decided_ms is not None
            and one.decided_ms >= first_ms - _CLOCKS_S * 1000
        ]
        may_be_committed = any(one.committed for one in decided)
        if unmarked := [one for one in self.last if place in one.places]:
            first = min(unmarked, key=lambda one: one.since_ms)
            return first, first.committed or (first.since_ms > latest_ms and may_be_committed)
        of_one = len({one.transactional_id for one in decided}) == 1
        return decided[-1] if of_one else None, may_be_committed


NOTHING = Entered([], [])


def held(settings: Settings) -> list[Held]:
    """The partitions of all pipelines that are blocked for more than `HELD_S`; [] also if Kafka does not answer."""
    found = by_pipeline(settings) or {}
    return [*dict.fromkeys(one for several in found.values() for one in several)]


def by_pipeline(settings: Settings) -> dict[str, list[Held]] | None:
    """By loadable pipeline, the partitions that are blocked for more than `HELD_S`. All topics of the pipeline and its workers
    are checked, changelog included. None if Kafka does not answer.
    """
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    topics: dict[str, Collection[str]] = {}
    for name, pipeline in pipelines.found().pipelines.items():
        with suppress(InvalidDeclaration):
            topics[name] = {*_transactional(loading.load_topology(pipeline)), *pipeline.topics_of_workers}
    asked = {topic for several in topics.values() for topic in several}
    try:
        found = _held(kafka_client.admin(settings.client()), settings.client(), asked)
    except KafkaException:
        return None
    return {name: [one for one in found if one.topic in several] for name, several in topics.items()}


def _transactional(topology: Topology) -> Collection[str]:
    """The topics of a pipeline without the decision log: its records are written without transactions."""
    order = [topology.order] if topology.order else []
    return {
        *topology.reads, *topology.outputs, topology.changelog, *topology.dead.values(), *order, topology.replays
    }  # fmt: skip


def _held(kafka: AdminClient, client: Mapping[str, Any], topics: Collection[str]) -> list[Held]:
    # High watermarks first: offsets before them that are not stable afterwards are blocked, and not just newly written.
    ends = offsets.high_watermarks(kafka, topics)
    stable = offsets.stable_ends(kafka, topics)
    held_at = {place: at for place, at in stable.items() if at < ends.get(place, at)}
    if not held_at:
        return []
    with closing(record_reader.consumer(client, **{"isolation.level": "read_uncommitted"})) as consumer:
        sent_ms = _sent(consumer, held_at)
        now_ms = time.time() * 1000
        # Producers choose these times. For a time in the future, only the transaction log can give the age.
        old = {place: ms for place, ms in sent_ms.items() if not 0 <= now_ms - ms < HELD_S * 1000}
        entered = _entered_since(consumer, min(old.values()), now_ms) if old else NOTHING
    found = []
    for (topic, partition), first_ms in old.items():
        place, at = (topic, partition), held_at[topic, partition]
        owner, committed = entered.owner(place, first_ms)
        age_s = (time.time() * 1000 - (owner.since_ms if owner else first_ms)) / 1000
        if age_s >= HELD_S:
            name = owner.transactional_id if owner else None
            found.append(Held(topic, partition, at, ends[place] - at, name, age_s, committed))
    if not found:
        return []
    # A producer may choose an old time in a short transaction: that transaction has ended meanwhile.
    still = offsets.stable_ends(kafka, {one.topic for one in found})
    return [one for one in found if still.get((one.topic, one.partition)) == one.offset]


def _sent(consumer: Consumer, places: Mapping[Place, int]) -> dict[Place, int]:
    """The timestamps of the records at these offsets, in milliseconds since 1970. Records that are not readable in time are
    left out.
    """
    found: dict[Place, int] = {}
    consumer.list_topics(timeout=_READ_S)  # the first answer gives the client the cluster's metadata
    with suppress(TimeoutError):
        for place, message in _messages(consumer, places):
            found.setdefault(place, message.timestamp()[1])
            if len(found) == len(places):
                break
    return found


def _entered_since(consumer: Consumer, since_ms: float, now_ms: float) -> Entered:
    """The log entries since this time; empty if the log is not readable."""
    from confluent_kafka import KafkaException

    from onefold import kafka_offsets

    since = int(max(min(since_ms, now_ms) - _CLOCKS_S * 1000, now_ms - _OPEN_MAX_S * 1000))
    last: dict[str, HangingTransaction | None] = {}
    decided: list[HangingTransaction] = []
    try:
        there = consumer.list_topics(timeout=_READ_S).topics.get(STATE_TOPIC)
        asked = [(STATE_TOPIC, partition) for partition in (there.partitions if there else ())]
        starts = kafka_offsets.first_since(consumer, asked, since, _READ_S)
        places = {place: at for place, at in starts.items() if at >= 0}
        for number, (_, message) in enumerate(_messages(consumer, places)):
            if (entry := transaction(message.key(), message.value())) is not None:
                name, found = entry
                last[name] = found
                if found is not None and found.decided_ms is not None:
                    decided.append(found)
            if number > _ENTRIES_MAX:
                return NOTHING
    except (KafkaException, TimeoutError):
        return NOTHING  # a part of the log may be out of date
    return Entered([one for one in last.values() if one is not None], decided)


def _messages(consumer: Consumer, starts: Mapping[Place, int]) -> Iterator[tuple[Place, Message]]:
    """All records from these offsets on. Raises `KafkaException` if Kafka refuses, and `TimeoutError`."""
    return kafka_reader.messages(
        consumer, dict(starts), dict.fromkeys(starts, sys.maxsize), kafka_reader.within(_READ_S)
    )


def transaction(key: bytes | None, value: bytes | None) -> tuple[str, HangingTransaction | None] | None:
    """Decode an entry of Kafka's transaction log: (transactional id, transaction, or None if no transaction is open or
    unmarked). None: no such entry, or an unknown format.
    """
    try:
        if key is None or _number(">h", key, 0) != 0:
            return None
        name = key[4 : 4 + _number(">h", key, 2)].decode()
        if value is None:  # the id has expired
            return name, None
        version, status = _number(">h", value, 0), _number(">b", value, 16)
        if version not in (0, 1):
            return None
        places, at = _places(value, 17, compact=version == 1)
        if status not in (_OPEN, _TO_COMMIT, _TO_ABORT):
            return name, None
        changed_ms, since_ms = _number(">q", value, at), _number(">q", value, at + 8)
        decided_ms = None if status == _OPEN else changed_ms
        return name, HangingTransaction(name, since_ms, frozenset(places), decided_ms, status == _TO_COMMIT)
    except (struct.error, ValueError, IndexError):
        return None


def _places(value: bytes, at: int, compact: bool) -> tuple[list[Place], int]:
    """The partitions in the bytes from `at` on, and the position after them."""
    places: list[Place] = []
    topics, at = _length(value, at, compact, ">i")
    for _ in range(topics):
        size, at = _length(value, at, compact, ">h")
        topic, at = value[at : at + size].decode(), at + size
        count, at = _length(value, at, compact, ">i")
        places += [(topic, _number(">i", value, at + 4 * number)) for number in range(count)]
        at += 4 * count
        if compact:  # tagged fields of later versions, without known numbers
            tagged, at = _varint(value, at)
            if tagged:
                raise ValueError("an entry with unknown fields")
    return places, at


def _length(value: bytes, at: int, compact: bool, form: str) -> tuple[int, int]:
    """The length of an array or text, and the position of its content. Null has length 0."""
    if not compact:
        return max(0, _number(form, value, at)), at + struct.calcsize(form)
    length, at = _varint(value, at)
    return max(0, length - 1), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    found, shift = 0, 0
    while True:
        byte, at = value[at], at + 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7


def _number(form: str, value: bytes, at: int) -> int:
    found: int = struct.unpack_from(form, value, at)[0]
    return found
