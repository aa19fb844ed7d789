"""A queue over Kafka: a consumer group that commits the offset of the lowest unacknowledged message.

The worker holds messages in memory until their acknowledgement, each invisible for the time of the last `hide`. After a crash
or a rebalance, the next owner of the partition reads all messages from the committed offset on. Some of these jobs may be done,
and their repeats are harmless.
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

# The maximum number of messages per partition in memory. A job usually has up to a thousand bytes.
HELD_MAX = 10_000
# The worker resumes a paused partition when the held messages have fallen to this share of the maximum.
_RESUME_SHARE = 0.5
# The maximum number of messages per call of the client.
_BATCH = 500
# The interval between commits. After a crash, Kafka delivers the messages acknowledged since the last commit again.
_COMMIT_EVERY_S = 1.0
# The time-out for the response of a running broker.
_ANSWER_S = 2.0


class DeliveredRecord(NamedTuple):
    """The place of a delivered record."""

    topic: str
    partition: int
    offset: int


@dataclass
class _Partition:
    """The state of an assigned partition.

    Attributes:
        follows: the partition of the queue's own topic that determines the assignment of this partition.
        position: the offset after the last read record.
        held: the unacknowledged jobs by offset, each with the start time of its visibility.
        committed: the last committed offset.
    """

    follows: int
    position: int = 0
    held: dict[int, tuple[float, Job]] = field(default_factory=dict)
    committed: int = 0
    paused: bool = False

    @property
    def acknowledged(self) -> int:
        """The offset below which all messages are acknowledged."""
        return min(self.held, default=self.position)


class KafkaQueue:
    """`onefold.jobs.protocols.Queue` of one topic, for one worker.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        instance: a name that survives a restart, unique among the queue's workers. A restarted worker immediately gets its
            partitions again.
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
        # A heap. An entry is valid while `held` has the job with the same time.
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
                # A worker keeps its other partitions during a rebalance, and continues a long job.
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
        """See `Queue`.

        Raises:
            Retriable: Kafka does not respond.
            Refused: a right in Kafka is missing, or another worker has the same instance name.
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
        """See `Queue`. Raises `Retriable` if the outcome is unknown."""
        self._writer.put(job)

    def hide(self, message: Message, seconds: float) -> None:
        """See `Queue`. Does nothing after the partition's assignment to another worker."""
        if (at := self._partitions.get(message.receipt[:2])) is not None and message.receipt.offset in at.held:
            self._hold(at, message.receipt, message.job, self._clock() + seconds)

    def acknowledge(self, message: Message) -> None:
        """See `Queue`."""
        if (at := self._partitions.get(message.receipt[:2])) is not None:
            at.held.pop(message.receipt.offset, None)

    def keep_alive(self) -> None:
        """Stay in the group by reading the available messages without waiting."""
        self._read(0.0)

    # --- beside that

    @property
    def waits_for(self) -> str:
        """The reason why the queue is blocked if the group has fenced the worker, else ""."""
        return self._member.fenced if self._member.consumer is None else ""

    @property
    def held(self) -> int:
        """The number of messages in memory."""
        return sum(len(at.held) for at in self._partitions.values())

    def close(self) -> None:
        """Commit, and close the consumer. The next owner of the partitions reads the unacknowledged messages."""
        if (consumer := self._member.consumer) is not None and self._member.has_place():
            self._commit(consumer, wait=True)
        self._member.close()

    # --- reading

    def _read(self, wait_s: float) -> None:
        if not self._member.rejoin() or (consumer := self._member.consumer) is None:
            time.sleep(wait_s)
            return
        # librdkafka's consume waits for the full number of messages, or the time-out. Wait for one message first.
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
            return  # of a partition revoked in the meantime
        if not topics.is_copy(message):
            try:
                job = topics.decode(self._queue, self._contract, receipt.topic, message.value())
                # Visible from now on, after hidden jobs with an earlier end of their wait.
                self._hold(at, receipt, job, self._clock())
            except Rejected as rejected:
                self._set_aside(receipt, message, str(rejected))
        at.position = max(at.position, receipt.offset + 1)

    def _set_aside(self, receipt: DeliveredRecord, message: KafkaMessage, reason: str) -> None:
        """Write a dead letter for a record that is not a job, because a retry would fail again."""
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

    # The group assigns the partitions of the queue's own topic. Each partition of the topic of requeued jobs follows the
    # partition of the same number, because a sticky assignor over both topics could separate the two partitions. If the queue
    # was recreated with fewer partitions, partition n of requeued jobs follows partition n modulo the queue's number of
    # partitions.

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        again = topics.again_of(self._queue)
        # The producer makes the query. A query by the consumer in its own callback would consume an event necessary for the
        # next callback of the same call, and the client would abort the process.
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
        """Drop the held messages of the partitions. The next owner reads all unacknowledged messages."""
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
        # During a rebalance, or without a broker, the commit fails. A later commit has the offsets, or Kafka delivers the
        # messages again.
        with suppress(KafkaException):
            if wait:
                consumer.commit(offsets=offsets, asynchronous=False)
            else:
                consumer.commit(offsets=offsets, asynchronous=True)
            for key, offset in changed.items():
                self._partitions[key].committed = offset
