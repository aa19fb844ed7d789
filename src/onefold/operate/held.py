"""Open transactions that hold back what committed records can be read: the last stable offset of a partition stays where such
a transaction began, and nobody folds or lands what lies behind it. They look drained, and are not.

Who holds it is not in the records: librdkafka gives no producer ids, and has neither DescribeProducers nor ListTransactions. It
is in Kafka's own log of transactions, `__transaction_state`, which says per transactional id since when it is open and over which
partitions, in Kafka's storage format of that topic, versions 0 and 1. Who may not read it is told the partition and the offset,
which is what Kafka's own tool wants (docs/operating.md).

The same log says what was decided. A transaction that was committed, and whose marker Kafka has left out (KAFKA-20734), looks
like an open one, and aborting it would remove what everybody was told is there.

Kafka's client is imported when Kafka is asked.
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
from onefold.operate import pipelines, positions, reading
from onefold.operate.positions import Place
from onefold.pipelines import Faulty
from onefold.processor import loading
from onefold.processor.core.topology import Topology

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

# Longer than a healthy transaction takes by far, also a large one; a processor's own is aborted by the broker after 15 s.
HELD_S = 10.0
STATE_TOPIC = "__transaction_state"
# A transaction is entered there before its first record is; this much clocks may differ.
_CLOCKS_S = 60.0
# It is not read from before that: a broker allows a transaction 15 minutes where nobody has told it otherwise.
_OPEN_MAX_S = 86_400.0
# For each of the two readings.
_READ_S = 3.0
# Of what is entered since then; a busy cluster writes some thousands of entries a second.
_ENTRIES_MAX = 200_000
# Kafka's TransactionState: it is open, or decided and not yet marked everywhere.
_OPEN, _TO_COMMIT, _TO_ABORT = 1, 2, 3


class Held(NamedTuple):
    """A partition that an open transaction holds back.

    Attributes:
        offset: the last stable one, where the transaction begins.
        hidden: so many offsets lie behind it, that nobody can read yet.
        transactional_id: whose it is; None: Kafka's log of transactions cannot be read, or does not have it.
        age_s: seconds since the transaction began; of one without id since its first record was sent.
        committed: whether it may have been committed, by what Kafka's log of transactions says.
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
        """The command that ends it; of one that may have been committed the one that shows who has written there."""
        if self.committed:
            return f"onefold kafka transactions describe-producers --topic {self.topic} --partition {self.partition}"
        return (
            f"onefold kafka transactions abort --topic {self.topic} --partition {self.partition} "
            f"--start-offset {self.offset}"
        )


class Transaction(NamedTuple):
    """An entry of a transactional id that has written somewhere and is not marked everywhere.

    Attributes:
        since_ms: when it began, in milliseconds since 1970.
        places: where it has written.
        decided_ms: when its end was decided; None: it is open.
        committed: how, if it was.
    """

    transactional_id: str
    since_ms: int
    places: frozenset[Place]
    decided_ms: int | None = None
    committed: bool = False


class Entered(NamedTuple):
    """What Kafka's log of transactions says: of each id the last entry, if it is not marked everywhere; and all decisions."""

    last: list[Transaction]
    decided: list[Transaction]

    def owner(self, place: Place, first_ms: int) -> tuple[Transaction | None, bool]:
        """Whose transaction hides a partition from a record on that was sent at this time, None where nobody can tell; and
        whether what is hidden there may have been committed.

        One that is not marked everywhere holds it, if it had begun by then. If it has not, its sender chose an older time, or it
        is the next one of a program that did not notice: then what was decided since then tells what may be hidden.
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
    """Of all topics of pipelines, those held for more than `HELD_S`; [] also when Kafka does not answer."""
    found = by_pipeline(settings) or {}
    return [*dict.fromkeys(one for several in found.values() for one in several)]


def by_pipeline(settings: Settings) -> dict[str, list[Held]] | None:
    """Of each pipeline that can be loaded, what is held for more than `HELD_S` of the topics that it and its workers read and
    write, and that it keeps its states in; None when Kafka does not answer.
    """
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    topics: dict[str, Collection[str]] = {}
    for name, pipeline in pipelines.found().pipelines.items():
        with suppress(Faulty):
            topics[name] = {*_transactional(loading.load_topology(pipeline)), *pipeline.topics_of_workers}
    asked = {topic for several in topics.values() for topic in several}
    try:
        found = _held(kafka_client.admin(settings.client()), settings.client(), asked)
    except KafkaException:
        return None
    return {name: [one for one in found if one.topic in several] for name, several in topics.items()}


def _transactional(topology: Topology) -> Collection[str]:
    """All of its topics but the decision log, into which nobody writes by transactions."""
    order = [topology.order] if topology.order else []
    return {
        *topology.reads, *topology.outputs, topology.changelog, *topology.dead.values(), *order, topology.replays
    }  # fmt: skip


def _held(kafka: AdminClient, client: Mapping[str, Any], topics: Collection[str]) -> list[Held]:
    # In this order: what ends after that and is not stable yet is held, and not just written in between.
    ends = positions.high_watermarks(kafka, topics)
    stable = positions.stable_ends(kafka, topics)
    held_at = {place: at for place, at in stable.items() if at < ends.get(place, at)}
    if not held_at:
        return []
    with closing(reading.consumer(client, **{"isolation.level": "read_uncommitted"})) as consumer:
        sent_ms = _sent(consumer, held_at)
        now_ms = time.time() * 1000
        # Senders choose these times. Of one from the future nothing is known, and the log of transactions is asked.
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
    # Times that senders chose may be old, and the transaction short: then it has ended meanwhile.
    still = positions.stable_ends(kafka, {one.topic for one in found})
    return [one for one in found if still.get((one.topic, one.partition)) == one.offset]


def _sent(consumer: Consumer, places: Mapping[Place, int]) -> dict[Place, int]:
    """When the records at these offsets were sent, in milliseconds since 1970; without those that cannot be read in time."""
    found: dict[Place, int] = {}
    consumer.list_topics(timeout=_READ_S)  # by the first answer it knows the cluster
    with suppress(TimeoutError):
        for place, message in _messages(consumer, places):
            found.setdefault(place, message.timestamp()[1])
            if len(found) == len(places):
                break
    return found


def _entered_since(consumer: Consumer, since_ms: float, now_ms: float) -> Entered:
    """What was entered since then; nothing where that may not be asked."""
    from confluent_kafka import KafkaException

    from onefold import kafka_offsets

    since = int(max(min(since_ms, now_ms) - _CLOCKS_S * 1000, now_ms - _OPEN_MAX_S * 1000))
    last: dict[str, Transaction | None] = {}
    decided: list[Transaction] = []
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
        return NOTHING  # what is known of some is out of date
    return Entered([one for one in last.values() if one is not None], decided)


def _messages(consumer: Consumer, starts: Mapping[Place, int]) -> Iterator[tuple[Place, Message]]:
    """All records from these offsets on. Raises `KafkaException` if Kafka refuses, and `TimeoutError`."""
    return kafka_reader.messages(
        consumer, dict(starts), dict.fromkeys(starts, sys.maxsize), kafka_reader.within(_READ_S)
    )


def transaction(key: bytes | None, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """What an entry of Kafka's log of transactions says: (transactional id, None when it is not open). None: it is no entry, or
    in a form that is not known here.
    """
    try:
        if key is None or _number(">h", key, 0) != 0:
            return None
        name = key[4 : 4 + _number(">h", key, 2)].decode()
        if value is None:  # its id has expired
            return name, None
        version, status = _number(">h", value, 0), _number(">b", value, 16)
        if version not in (0, 1):
            return None
        places, at = _places(value, 17, compact=version == 1)
        if status not in (_OPEN, _TO_COMMIT, _TO_ABORT):
            return name, None
        changed_ms, since_ms = _number(">q", value, at), _number(">q", value, at + 8)
        decided_ms = None if status == _OPEN else changed_ms
        return name, Transaction(name, since_ms, frozenset(places), decided_ms, status == _TO_COMMIT)
    except (struct.error, ValueError, IndexError):
        return None


def _places(value: bytes, at: int, compact: bool) -> tuple[list[Place], int]:
    """The partitions that begin at this byte, and where they end."""
    places: list[Place] = []
    topics, at = _length(value, at, compact, ">i")
    for _ in range(topics):
        size, at = _length(value, at, compact, ">h")
        topic, at = value[at : at + size].decode(), at + size
        count, at = _length(value, at, compact, ">i")
        places += [(topic, _number(">i", value, at + 4 * number)) for number in range(count)]
        at += 4 * count
        if compact:  # fields that a later version has added, which have no numbers yet
            tagged, at = _varint(value, at)
            if tagged:
                raise ValueError("an entry with unknown fields")
    return places, at


def _length(value: bytes, at: int, compact: bool, form: str) -> tuple[int, int]:
    """Of an array or a text, and where its content begins. What is null has none."""
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
