"""A queue over Kafka: a consumer group whose offset is that of the lowest message that is not acknowledged.

The worker holds messages in memory until they are acknowledged, each invisible for the time of the last `hide`. After a crash or
a rebalance, the next owner of the partition reads all messages from the committed offset on. Some of them are done already, and
a repeat does no harm.
"""

import heapq
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from onefold.error_codes import Code
from onefold.jobs import topics
from onefold.jobs.protocols import Job, Message
from onefold.jobs.writer import RecordWriter
from onefold.processor.core.errors import Rejected, Retriable
from onefold.processor.io.broker_watch import Away
from onefold.processor.io.contracts import RecordSchema
from onefold.processor.io.static_member import StaticMember
from onefold.processor.runtime.dead_letters import origin_headers

log = structlog.get_logger()

# Messages of one partition in memory; a job has some hundred bytes, or a thousand.
HELD_MAX = 10_000
# A paused partition is resumed when the share of held messages has fallen to this.
_RESUME_SHARE = 0.5
# Messages that one call takes from the client.
_BATCH = 500
# Between two commits. After a crash the messages that were acknowledged since the last commit come again.
_COMMIT_EVERY_S = 1.0
# For an answer of a broker that runs.
_ANSWER_S = 2.0


class DeliveredRecord(NamedTuple):
    """Which record was delivered."""

    topic: str
    partition: int
    offset: int


@dataclass
class _Partition:
    """The state of an assigned partition.

    Attributes:
        follows: the partition of the queue's own topic with which the group gives and takes this one.
        position: the offset after the last record that was read.
        held: jobs that are not acknowledged, by offset, each with the time from which it is visible.
        committed: the offset that was committed last.
    """

    follows: int
    position: int = 0
    held: dict[int, tuple[float, Job]] = field(default_factory=dict)
    committed: int = 0
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
        still: see `onefold.jobs.writer.RecordWriter`.
    """

    def __init__(
        self,
        queue: str,
        contract: RecordSchema,
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
        # A heap. An entry is valid while its job is held with this time.
        self._invisible: list[tuple[float, DeliveredRecord]] = []
        self._commit_at = 0.0
        self._away = Away(queue, _ANSWER_S, client)
        self._writer = RecordWriter(client, still)
        self._member = StaticMember(
            client,
            topics.group_of(queue),
            instance,
            f"worker of {queue}",
            session_timeout_ms,
            {
                # A worker keeps its other partitions during a rebalance, and goes on with a long job.
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
        """Deliver it again after so many seconds. Does nothing when the partition has gone to another worker."""
        if (at := self._partitions.get(message.receipt[:2])) is not None and message.receipt.offset in at.held:
            self._hold(at, message.receipt, message.job, self._clock() + seconds)

    def acknowledge(self, message: Message) -> None:
        """Do not deliver it again."""
        if (at := self._partitions.get(message.receipt[:2])) is not None:
            at.held.pop(message.receipt.offset, None)

    def keep_alive(self) -> None:
        """Stay in the group: read what has come, and wait for nothing."""
        self._read(0.0)

    # --- beside that

    @property
    def waits_for(self) -> str:
        """Why it has nothing to give, when its group has fenced it; else ""."""
        return self._member.fenced if self._member.consumer is None else ""

    @property
    def held(self) -> int:
        """Messages in memory."""
        return sum(len(at.held) for at in self._partitions.values())

    def close(self) -> None:
        """Commit, and close the consumer. The next owner of the partitions reads what is not acknowledged."""
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
                self._partitions.clear()
                return
            else:
                self._member.check(error, message.topic())
                raise Retriable(Code.KAFKA_CALL_FAILED, f"reading {self._queue}: {error.name()}: {error.str()}")
        for key, at in self._partitions.items():
            self._pace(consumer, key, at)
        if self._clock() >= self._commit_at:
            self._commit_at = self._clock() + _COMMIT_EVERY_S
            if self._member.has_place():
                self._commit(consumer, wait=False)

    def _take(self, message: KafkaMessage) -> None:
        receipt = DeliveredRecord(message.topic() or "", message.partition() or 0, message.offset() or 0)
        at = self._partitions.get(receipt[:2])
        if at is None:
            return  # of a partition that was revoked meanwhile
        if not topics.is_copy(message):
            try:
                job = topics.decode(self._queue, self._contract, receipt.topic, message.value())
                # Visible from now on: a job whose wait has ended before comes first.
                self._hold(at, receipt, job, self._clock())
            except Rejected as rejected:
                self._set_aside(receipt, message, str(rejected))
        at.position = max(at.position, receipt.offset + 1)

    def _set_aside(self, receipt: DeliveredRecord, message: KafkaMessage, reason: str) -> None:
        """Write a dead letter of a record that is no job: a retry would fail in the same way."""
        source, value = f"{receipt.topic}/{receipt.partition}/{receipt.offset}", message.value()
        log.error("a record is no job, and went to the dead-letter topic", record=source, reason=reason)
        headers = origin_headers(source.encode(), value, reason)
        self._writer.write(topics.dead_of(self._queue), message.key(), value, headers)

    def _hold(self, at: _Partition, receipt: DeliveredRecord, job: Job, visible_at: float) -> None:
        at.held[receipt.offset] = visible_at, job
        heapq.heappush(self._invisible, (visible_at, receipt))

    def _visible(self) -> Message | None:
        while self._invisible and self._invisible[0][0] <= self._clock():
            visible_at, receipt = heapq.heappop(self._invisible)
            at = self._partitions.get(receipt[:2])
            if at is not None and (held := at.held.get(receipt.offset)) is not None and held[0] == visible_at:
                return Message(held[1], receipt)
        return None

    def _pace(self, consumer: Consumer, key: tuple[str, int], at: _Partition) -> None:
        full = len(at.held) > self._held_max * _RESUME_SHARE if at.paused else len(at.held) >= self._held_max
        if full != at.paused:
            (consumer.pause if full else consumer.resume)([TopicPartition(*key)])
            at.paused = full

    # --- the group

    # The group assigns the partitions of the queue's own topic. Each partition of the topic of requeued jobs follows the one of
    # the same number. A sticky assignor of both topics could separate the two. If the queue was recreated with fewer
    # partitions, partition n of the other topic follows n modulo the queue's number.

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        again = topics.again_of(self._queue)
        # The producer is asked, for a callback may not ask its own consumer: the answer would take from the client what the next
        # callback of the same call needs, and the client would end the process.
        queues, agains = self._writer.partitions(self._queue), self._writer.partitions(again)
        assigned: list[tuple[str, int]] = []
        for one in partitions:
            beside = range(one.partition, agains, queues) if queues and agains else [one.partition]
            both = [(one.topic, one.partition), *((again, number) for number in beside)]
            self._partitions |= {key: _Partition(one.partition) for key in both}
            assigned += both
        consumer.incremental_assign([TopicPartition(*key) for key in assigned])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(consumer, wait=True)
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget what is held of these partitions: the next owner reads all that was not acknowledged."""
        numbers = {one.partition for one in partitions}
        gone = [key for key, at in self._partitions.items() if at.follows in numbers]
        for key in gone:
            del self._partitions[key]
        consumer.incremental_unassign([TopicPartition(*key) for key in gone])

    def _commit(self, consumer: Consumer, *, wait: bool) -> None:
        changed = {key: offset for key, at in self._partitions.items() if (offset := at.acknowledged) > at.committed}
        if not changed:
            return
        offsets = [TopicPartition(*key, offset) for key, offset in changed.items()]
        # During a rebalance, or without a broker, the commit fails. A later one has the offsets, or the messages come again.
        with suppress(KafkaException):
            if wait:
                consumer.commit(offsets=offsets, asynchronous=False)
            else:
                consumer.commit(offsets=offsets, asynchronous=True)
            for key, offset in changed.items():
                self._partitions[key].committed = offset
