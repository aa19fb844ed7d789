"""A queue over Kafka: a consumer group whose offset is that of the lowest message that is not acknowledged.

Messages are held in memory until they are acknowledged, each invisible for as long as its worker said. In Kafka they stay where
they are: who is given the partition next, after a crash or a rebalance, is given all that was not acknowledged, and what was
done after it as well, which does no harm.
"""

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from onefold.error_codes import Code
from onefold.jobs import topics
from onefold.jobs.protocols import Job, Message
from onefold.jobs.writer import Writer
from onefold.processor.core.errors import Refused, Rejected, Retriable
from onefold.processor.io.away import Away
from onefold.processor.io.contracts import Contract
from onefold.processor.io.static_member import StaticMember

log = structlog.get_logger()

# Of one partition; more are left in Kafka. A job is some hundred bytes, or a thousand.
HELD_MAX = 10_000
# Read on when so much of it has been done.
_RESUME_SHARE = 0.5
# How many are taken from the client at once; it costs nothing when there are none.
_BATCH = 500
# Offsets are committed at most so often: what was acknowledged since is delivered again after a crash, and is done already.
_COMMIT_EVERY_S = 1.0
# For a rebalance under way, and for an answer of a broker that is there.
_ANSWER_S = 2.0


class Receipt(NamedTuple):
    """Which record was delivered."""

    topic: str
    partition: int
    offset: int


@dataclass
class _Partition:
    """What is held of one partition.

    Attributes:
        position: the offset after the last one that was read.
        held: jobs that are not acknowledged, by offset.
        committed: the offset that the group was told last.
    """

    position: int = 0
    held: dict[int, Job] = field(default_factory=dict)
    committed: int = -1
    paused: bool = False

    @property
    def acknowledged(self) -> int:
        """All below it are."""
        return min(self.held, default=self.position)


class KafkaQueue:
    """`onefold.jobs.protocols.Queue` of one topic, for one worker.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        instance: a name that survives a restart, so that a restarted worker gets its partitions back at once; unique among
            the workers of the queue.
        still: see `onefold.jobs.writer.Writer`.
    """

    def __init__(
        self,
        queue: str,
        contract: Contract,
        client: Mapping[str, str],
        instance: str,
        *,
        held_max: int = HELD_MAX,
        session_timeout_ms: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        still: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = queue
        self._contract = contract
        self._held_max = held_max
        self._clock = clock
        self._partitions: dict[tuple[str, int], _Partition] = {}
        # Per partition of the queue, those of what is put back that go with it.
        self._beside: dict[int, list[TopicPartition]] = {}
        self._invisible: list[tuple[float, int, Receipt]] = []
        self._numbers = count()
        self._commit_at = 0.0
        self._away = Away(queue, _ANSWER_S, client)
        self._writer = Writer(client, still)
        self._member = StaticMember(
            client,
            topics.group_of(queue),
            instance,
            f"worker of {queue}",
            session_timeout_ms,
            {
                # What stays with a worker is not taken from it while others come and go.
                "partition.assignment.strategy": "cooperative-sticky",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 16_384,
                "error_cb": self._away.heard,
            },
            self._subscribe,
        )

    def _subscribe(self, consumer: Consumer) -> None:
        consumer.subscribe([self._queue], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    # --- as a queue

    def receive(self, timeout_s: float) -> Message | None:
        """The next one that is visible, waiting up to so many seconds. None: there is none.

        Raises:
            Retriable: Kafka does not answer.
            Refused: it does not allow this, or another worker has the same instance name.
        """
        deadline = self._clock() + timeout_s
        wait_s = 0.0
        while True:
            self._read(wait_s)
            if (found := self._visible()) is not None:
                return found
            now = self._clock()
            if now >= deadline:
                if self._member.consumer is not None:
                    self._away.check(self._member.consumer)
                return None
            ends = min(deadline, self._invisible[0][0]) if self._invisible else deadline
            wait_s = max(0.0, ends - now)

    def put(self, job: Job) -> None:
        """Add a job (again). On return the queue has it. Raises `Retriable` when it may not have it."""
        self._writer.put(job)

    def hide(self, message: Message, seconds: float) -> None:
        """Deliver it again after so many seconds; by somebody else, when its partition is somebody else's by now."""
        self._hide(message.receipt, self._clock() + seconds)

    def acknowledge(self, message: Message) -> None:
        """Do not deliver it again."""
        topic, partition, offset = message.receipt
        if (at := self._partitions.get((topic, partition))) is not None:
            at.held.pop(offset, None)

    def keep_alive(self) -> None:
        """Stay in the group: read what has come, and wait for nothing."""
        self._read(0.0)

    # --- beside that

    @property
    def waits_for(self) -> str:
        """Why it has nothing to give, when its group has fenced it; else ""."""
        if self._member.consumer is not None:
            return ""
        return (
            f"the group {topics.group_of(self._queue)} has fenced this worker; it joins again, unless the group shows another "
            f"live one of the same name"
        )

    @property
    def held(self) -> int:
        """Messages in memory."""
        return sum(len(at.held) for at in self._partitions.values())

    def close(self) -> None:
        """Leave; what is not acknowledged is delivered again, to whoever comes."""
        if (consumer := self._member.consumer) is not None and self._member.has_place():
            self._commit(consumer, wait=True)
        self._member.close()

    # --- reading

    def _read(self, wait_s: float) -> None:
        if not self._member.rejoin() or (consumer := self._member.consumer) is None:
            time.sleep(wait_s)
            return
        # librdkafka's consume waits until it has all that it may return, or the time is over.
        found = consumer.consume(1, wait_s)
        if found:
            found += consumer.consume(_BATCH, 0)
        for message in found:
            if (error := message.error()) is None:
                self._take(message)
            elif self._member.is_fence(error):
                self._partitions, self._beside, self._invisible = {}, {}, []
                return
            else:
                self._raise(error)
        for key, at in self._partitions.items():
            self._pace(consumer, key, at)
        if self._clock() >= self._commit_at:
            self._commit_at = self._clock() + _COMMIT_EVERY_S
            if self._member.has_place():
                self._commit(consumer, wait=False)

    def _take(self, message: KafkaMessage) -> None:
        receipt = Receipt(message.topic() or "", message.partition() or 0, message.offset() or 0)
        at = self._partitions.get(receipt[:2])
        if at is None:
            return  # read before its partition was taken from us
        if not topics.is_copy(message):
            self._hold(at, receipt, message)
        at.position = max(at.position, receipt.offset + 1)

    def _hold(self, at: _Partition, receipt: Receipt, message: KafkaMessage) -> None:
        try:
            at.held[receipt.offset] = topics.decode(self._queue, self._contract, receipt.topic, message.value())
        except Rejected as rejected:
            self._set_aside(receipt, message, str(rejected))
        else:
            # From now on, so that one whose wait is over is not behind all that come after it.
            self._hide(receipt, self._clock())

    def _set_aside(self, receipt: Receipt, message: KafkaMessage, reason: str) -> None:
        """What is no job would be none the next time: a dead letter, and on."""
        source, value = f"{receipt.topic}/{receipt.partition}/{receipt.offset}", message.value()
        log.error("a record is no job, and went to the dead-letter topic", record=source, reason=reason)
        headers = topics.dead_headers(source, value, reason)
        self._writer.write(topics.dead_of(self._queue), message.key(), value, headers)

    def _hide(self, receipt: Receipt, until: float) -> None:
        heapq.heappush(self._invisible, (until, next(self._numbers), receipt))

    def _visible(self) -> Message | None:
        while self._invisible and self._invisible[0][0] <= self._clock():
            _, _, receipt = heapq.heappop(self._invisible)
            at = self._partitions.get(receipt[:2])
            if at is not None and receipt.offset in at.held:
                return Message(at.held[receipt.offset], receipt)
        return None

    def _pace(self, consumer: Consumer, key: tuple[str, int], at: _Partition) -> None:
        place = [TopicPartition(*key)]
        if not at.paused and len(at.held) >= self._held_max:
            consumer.pause(place)
            at.paused = True
        elif at.paused and len(at.held) <= self._held_max * _RESUME_SHARE:
            consumer.resume(place)
            at.paused = False

    # --- the group

    # The group shares the partitions of the queue's own topic. Those of what is put back go with them, by number: a sticky
    # assignor would give one worker all of the one topic, and another all of the other. Where the queue was made anew with fewer
    # partitions, the other topic has more: then number 5 goes with number 5 modulo the queue's, or nobody would read it.

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        again = topics.again_of(self._queue)
        # Not asked of this consumer: within a callback of its own, what it is asked takes from it what the next callback of the
        # same call needs, and the client ends the process.
        queues, agains = self._writer.partitions(self._queue), self._writer.partitions(again)
        for one in partitions:
            beside = range(one.partition, agains, queues) if queues and agains else [one.partition]
            self._beside[one.partition] = [TopicPartition(again, number) for number in beside]
        both = [*partitions, *(other for one in partitions for other in self._beside[one.partition])]
        consumer.incremental_assign(both)
        for one in both:
            self._partitions[one.topic, one.partition] = _Partition()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(consumer, wait=True)
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Somebody else is given all that was not acknowledged: what is held of it is forgotten."""
        both = [*partitions, *(other for one in partitions for other in self._beside.pop(one.partition, []))]
        for one in both:
            self._partitions.pop((one.topic, one.partition), None)
        gone = {(one.topic, one.partition) for one in both}
        # Else a message that is delivered here again would be there twice.
        self._invisible = [one for one in self._invisible if (one[2].topic, one[2].partition) not in gone]
        heapq.heapify(self._invisible)
        consumer.incremental_unassign(both)

    def _commit(self, consumer: Consumer, *, wait: bool) -> None:
        changed = {key: at for key, at in self._partitions.items() if at.acknowledged > max(at.committed, 0)}
        if not changed:
            return
        offsets = [TopicPartition(*key, at.acknowledged) for key, at in changed.items()]
        try:
            if wait:
                consumer.commit(offsets=offsets, asynchronous=False)
            else:
                consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException:
            return  # a rebalance is under way, or the broker is away: said again later, or the messages come again
        for (_, at), place in zip(changed.items(), offsets, strict=True):
            at.committed = place.offset

    def _raise(self, error: KafkaError) -> None:
        self._member.check_session(error)
        if error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise Refused(Code.KAFKA_RIGHT, f"not allowed in the group {topics.group_of(self._queue)}: {error.str()}")
        raise Retriable(Code.KAFKA_CALL_FAILED, f"reading {self._queue}: {error.name()}: {error.str()}")
