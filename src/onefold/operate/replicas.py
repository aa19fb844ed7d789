"""The status of active-active replicas, from proposals and publications at the end of a decision log.

Kafka's client is imported only for a request.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from onefold import kafka_reader
from onefold.config.settings import Settings
from onefold.operate import pipelines, record_reader
from onefold.operate.offsets import CALL_S
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading
from onefold.processor.core.decision import Proposal, ProposalKind
from onefold.processor.core.decision_log import StatusRecord
from onefold.processor.core.errors import Refused
from onefold.processor.io.proposals import MsgpackProposals

if TYPE_CHECKING:
    from confluent_kafka import Consumer

# The limits for reading the end of a partition.
WINDOW_S = 30.0
RECORDS_MAX = 2_000
BYTES_MAX = 8_000_000
READ_S = 3.0
# The first range, and its growth up to the limits: proposals may be small and many, or large and few.
RECORDS_FIRST, RECORDS_GROW = 16, 4
# The interval for decisions per second.
RATE_S = 5.0


class LogRecord(NamedTuple):
    """A record of a decision log: time of writing (seconds since 1970), content, and size in bytes."""

    at_s: float
    content: Proposal | StatusRecord | None
    size: int = 0


class ReplicaNow(NamedTuple):
    """One replica.

    Attributes:
        accepted: the number of its accepted proposals among the recent decisions of the pipeline.
        publishes: the number of tasks that this replica published last.
        last_s: seconds since its last record in a decision log.
    """

    accepted: int
    publishes: int
    last_s: float


class ReplicasNow(NamedTuple):
    """The replicas of one pipeline.

    Attributes:
        decisions_a_second: over the last seconds.
        decisions: the recent decisions in the part of the logs that was read.
        unpublished: decided versions that are not yet published to the output topics. None: unknown.
        replicas: by name, with a record in the part of the logs that was read.
    """

    decisions_a_second: float
    decisions: int
    unpublished: int | None
    replicas: Mapping[str, ReplicaNow]


def replicas_of_all(settings: Settings, only: str | None = None, timeout_s: float = CALL_S) -> dict[str, ReplicasNow]:
    """The replicas of each pipeline with a decision log, or only of the given pipeline. Pipelines without an answer from Kafka
    are left out.
    """
    from confluent_kafka import KafkaException

    found = {}
    with closing(record_reader.consumer(settings.client())) as consumer:
        try:
            topics = consumer.list_topics(timeout=timeout_s).topics
            for name, topic in _decision_logs().items():
                if topic not in topics or only not in (None, name):
                    continue
                records = _tail(consumer, topic, list(topics[topic].partitions), timeout_s)
                if (now := summary(records, time.time())) is not None:
                    found[name] = now
        except KafkaException:
            return found
    return found


def publisher_of(name: str, settings: Settings) -> str | None:
    """The replica that was the last publisher of most tasks of a pipeline. None: no task is published, or Kafka does not
    answer.
    """
    now = replicas_of_all(settings, only=name).get(name)
    published = {replica: one.publishes for replica, one in now.replicas.items() if one.publishes} if now else {}
    return max(published, key=lambda replica: published[replica], default=None)


def summary(records: Iterable[LogRecord], now_s: float) -> ReplicasNow | None:
    """Summarize the ends of a decision log's partitions.

    Args:
        records: in order and without gaps for each partition.
        now_s: seconds since 1970.

    Returns:
        None if the log decides no task.
    """
    tasks: defaultdict[int, _ReplicatedTask] = defaultdict(_ReplicatedTask)
    for record in records:
        if record.content is not None:
            tasks[record.content.task].take(record.at_s, record.content)
    open_tasks = [task for task in tasks.values() if not task.closed]
    if not open_tasks:
        return None
    accepted = sum((task.accepted for task in open_tasks), Counter[str]())
    published = [task.published for task in open_tasks]
    names = sorted({name for task in open_tasks for name in task.last_at_s})
    return ReplicasNow(
        sum(task.rate(now_s) for task in open_tasks),
        accepted.total(),
        None if None in published else sum(task.newest - (task.published or 0) for task in open_tasks),
        {
            name: ReplicaNow(
                accepted[name],
                sum(task.publisher == name for task in open_tasks),
                max(0.0, now_s - max(task.last_at_s.get(name, 0.0) for task in open_tasks)),
            )
            for name in names
        },
    )


@dataclass
class _ReplicatedTask:
    """One task: the decided version, the published version, and the publisher."""

    newest: int = 0
    published: int | None = None
    publisher: str | None = None
    closed: bool = False  # Kafka transactions decide the task again
    accepted: Counter[str] = field(default_factory=Counter)
    last_at_s: dict[str, float] = field(default_factory=dict)
    _proposed: int = -1
    _history: list[tuple[float, int]] = field(default_factory=list)

    def take(self, at_s: float, content: Proposal | StatusRecord) -> None:
        """Process the next record. A status record without the field `published`, as of an older version, counts only as a sign
        of life.
        """
        self.last_at_s[content.proposer] = at_s
        if isinstance(content, Proposal):
            # The first proposal that continues a version is accepted.
            if content.version > self._proposed:
                self._proposed = content.version
                self.closed = content.kind is ProposalKind.CLOSE
                self.accepted[content.proposer] += content.kind is ProposalKind.STEP
                self._decided(at_s, content.version + 1)
        elif type(version := content.body.get("published")) is int:
            self._decided(at_s, version)
            self.published, self.publisher = max(self.published or 0, version), content.proposer

    def _decided(self, at_s: float, version: int) -> None:
        self.newest = max(self.newest, version)
        self._history.append((at_s, self.newest))

    def rate(self, now_s: float) -> float:
        """Decisions per second."""
        if not self._history:
            return 0.0
        first_s, first = self._history[0]
        before = [newest for at_s, newest in self._history if at_s <= now_s - RATE_S]
        if before:
            return (self.newest - before[-1]) / RATE_S
        return (self.newest - first) / max(now_s - first_s, 1.0)


def _decision_logs() -> dict[str, str]:
    """The name of the decision log by pipeline, whether the log exists or not."""
    found = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            found[name] = loading.load_topology(pipeline).decisions
        except InvalidDeclaration:
            continue
    return found


def _tail(consumer: Consumer, topic: str, partitions: Sequence[int], timeout_s: float) -> list[LogRecord]:
    """Read the end of each partition, in order. Raises KafkaException if Kafka does not answer."""
    from onefold import kafka_offsets

    left_s = kafka_reader.within(READ_S)
    oldest_s = time.time() - WINDOW_S
    found: dict[int, list[LogRecord]] = {partition: [] for partition in partitions}
    lows, ranges = {}, {}
    for partition in partitions:
        low, high = kafka_offsets.bounds(consumer, (topic, partition), timeout_s)
        lows[partition] = low
        if low < high:
            ranges[partition] = (max(low, high - RECORDS_FIRST), high)
    while ranges:
        earlier = {}
        for partition, records in _between(consumer, topic, ranges, left_s).items():
            found[partition] = together = [*records, *found[partition]]
            start, _ = ranges[partition]
            more = min(len(together) * RECORDS_GROW, RECORDS_MAX - len(together))
            enough = (
                start <= lows[partition]
                or together[0].at_s < oldest_s
                or more == 0
                or sum(record.size for record in together) >= BYTES_MAX
            )
            if not enough:
                earlier[partition] = (max(lows[partition], start - more), start)
        ranges = earlier
    return [record for records in found.values() for record in records]


def _between(
    consumer: Consumer, topic: str, ranges: Mapping[int, tuple[int, int]], left_s: Callable[[], float]
) -> dict[int, list[LogRecord]]:
    """Read ranges of offsets by partition, without partitions that cannot be read in time. Raises KafkaException."""
    found: dict[int, list[LogRecord]] = {partition: [] for partition in ranges}
    starts = {(topic, partition): start for partition, (start, _) in ranges.items()}
    ends = {(topic, partition): end for partition, (_, end) in ranges.items()}
    with suppress(TimeoutError):
        for (_, partition), message in kafka_reader.messages(consumer, starts, ends, left_s):
            value = message.value()
            found[partition].append(LogRecord(message.timestamp()[1] / 1000, _content(value), len(value or b"")))
    return {partition: records for partition, records in found.items() if (topic, partition) not in ends}


def _content(value: bytes | None) -> Proposal | StatusRecord | None:
    """A status record, or a proposal without its body; None for unknown bytes, and for records of a newer Onefold."""
    try:
        record = MsgpackProposals().decode(value)
    except Refused:
        return None
    return record._replace(body=None) if isinstance(record, Proposal) else record
