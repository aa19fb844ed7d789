"""How the replicas of hot-hot pipelines are: by what they tell each other in the decision log, of which only the end is read.

Kafka's client is imported when Kafka is asked.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from onefold.operate import pipelines
from onefold.operate.positions import CALL_S
from onefold.operate.settings import Settings
from onefold.pipelines import Faulty
from onefold.processor import loading
from onefold.processor.core.decision import Kind
from onefold.processor.core.decision_log import Note
from onefold.processor.io.proposals import AvroProposals, Head

if TYPE_CHECKING:
    from confluent_kafka import Consumer

# Of a partition's end, what is read at most, and for how long. A replica that others go on without is shown for this time.
WINDOW_S = 30.0
RECORDS_MAX = 2_000
BYTES_MAX = 8_000_000
READ_S = 3.0
# Read first; then as much again and again until it is enough: proposals may be small and many, or large and few.
RECORDS_FIRST, RECORDS_GROW = 16, 4
# Decisions a second are those of the last seconds.
RATE_S = 5.0
# Whoever lives and has something to tell tells it every second.
SILENT_S = 5.0


class Heard(NamedTuple):
    """A record of a decision log: its place, when it was written (seconds since 1970), and what it says."""

    partition: int
    offset: int
    at_s: float
    said: Head | Note | None
    size: int = 0


class ReplicaNow(NamedTuple):
    """One replica.

    Attributes:
        tasks: of which it has told something.
        won, decided: decisions since it was started; of how many its proposal came first.
        behind: versions that it had not taken over when it last told; when it is silent, that it has not taken over now.
        publishes: how many tasks it publishes.
        heard_s: seconds since it last told something.
        silent: whether decisions have gone on without a word of it.
    """

    tasks: int
    won: int
    decided: int
    behind: int
    publishes: int
    heard_s: float
    silent: bool


class ReplicasNow(NamedTuple):
    """Those of one pipeline.

    Attributes:
        decisions_a_second: over the last seconds.
        unpublished: versions that are decided, and that readers of plain topics cannot see yet. None: nobody has told.
        replicas: by name.
    """

    decisions_a_second: float
    unpublished: int | None
    replicas: Mapping[str, ReplicaNow]


def replicas_of_all(settings: Settings, only: str | None = None) -> dict[str, ReplicasNow]:
    """Of each pipeline whose tasks are decided in a log, or of this one. Those that Kafka does not answer for are left out."""
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    found = {}
    client = {
        **settings.client(),
        "group.id": "onefold-watches-replicas",  # required by the client and never used
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 4_096,
    }
    with closing(kafka_client.consumer(client)) as consumer:
        try:
            topics = consumer.list_topics(timeout=CALL_S).topics
            for name, topic in _decision_logs().items():
                if topic not in topics or only not in (None, name):
                    continue
                heard = _tail(consumer, topic, list(topics[topic].partitions))
                if (now := standing(heard, time.time())) is not None:
                    found[name] = now
        except KafkaException:
            return found
    return found


def publisher_of(name: str, settings: Settings) -> str | None:
    """The replica of a pipeline that publishes most tasks. None: nobody does, or Kafka does not answer."""
    now = replicas_of_all(settings, only=name).get(name)
    published = {replica: one.publishes for replica, one in now.replicas.items() if one.publishes} if now else {}
    return max(published, key=lambda replica: published[replica], default=None)


def standing(heard: Iterable[Heard], now_s: float) -> ReplicasNow | None:
    """What the ends of a decision log's partitions say.

    Args:
        heard: of each partition in order, with nothing left out.
        now_s: seconds since 1970.

    Returns:
        None when no task is decided there, or no replica has told anything.
    """
    tasks: defaultdict[int, _Task] = defaultdict(_Task)
    for record in heard:
        if record.said is not None:
            tasks[record.said.task].take(record)
    open_tasks = [task for task in tasks.values() if not task.closed]
    names = sorted({name for task in open_tasks for name in task.told})
    if not names:
        return None
    published = [task.published for task in open_tasks]
    replicas = {name: _replica(name, open_tasks, now_s) for name in names}
    return ReplicasNow(
        sum(task.rate(now_s) for task in open_tasks),
        None if None in published else sum(task.newest - (task.published or 0) for task in open_tasks),
        {name: one for name, one in replicas.items() if not (one.silent and one.heard_s > WINDOW_S)},
    )


class _Told(NamedTuple):
    """What a replica told last about a task, and the newest version that was known to be decided just then."""

    at_s: float
    version: int
    won: int
    decided: int
    newest: int


@dataclass
class _Task:
    """What is said of one task."""

    newest: int = 0
    published: int | None = None
    publisher: str | None = None
    told: dict[str, _Told] = field(default_factory=dict)
    _closed_at: int | None = None
    _known: list[tuple[float, int]] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """Whether Kafka transactions decide it again: the last version of the log is a close."""
        return self._closed_at is not None and self._closed_at + 1 >= self.newest

    def take(self, record: Heard) -> None:
        """The next record."""
        said = record.said
        if isinstance(said, Head):
            # Whoever continues a version has seen it decided.
            self._decided(record.at_s, said.version)
            if said.kind is Kind.CLOSE:
                self._closed_at = said.version
            elif self._closed_at is not None and said.version > self._closed_at:
                self._closed_at = (
                    None  # it lost, or the log was opened again: nobody continues a version that closed it
                )
        elif isinstance(said, Note):
            with suppress(KeyError, TypeError):  # a note that says nothing sensible, whoever wrote it
                self._hear(record.at_s, said)

    def _hear(self, at_s: float, said: Note) -> None:
        if (version := said.body.get("published")) is not None:
            self._decided(at_s, version)
            self._published(version)
            self.publisher = said.proposer
        if (told := said.body.get("replica")) is not None:
            self._tell(at_s, said.proposer, told)

    def _tell(self, at_s: float, name: str, told: Mapping[str, Any]) -> None:
        version, won, decided, published = (told[key] for key in ("version", "won", "decided", "published"))
        if not all(type(number) is int for number in (version, won, decided, published)):
            raise TypeError(f"{told} are no numbers")
        self._decided(at_s, version)
        self._published(published)
        self.told[name] = _Told(at_s, version, won, decided, self.newest)
        if told["publishes"]:
            self.publisher = name
        elif self.publisher == name:
            self.publisher = None

    def _decided(self, at_s: float, version: int) -> None:
        self.newest = max(self.newest, version)
        self._known.append((at_s, self.newest))

    def _published(self, version: int) -> None:
        self.published = max(self.published or 0, version)

    def rate(self, now_s: float) -> float:
        """Decisions a second."""
        if not self._known:
            return 0.0
        first_s, first = self._known[0]
        before = [newest for at_s, newest in self._known if at_s <= now_s - RATE_S]
        if before:
            return (self.newest - before[-1]) / RATE_S
        return (self.newest - first) / max(now_s - first_s, 1.0)


def _replica(name: str, tasks: Sequence[_Task], now_s: float) -> ReplicaNow:
    of_it = [(task, task.told[name]) for task in tasks if name in task.told]
    heard_s = max(0.0, now_s - max(told.at_s for _, told in of_it))
    behind = sum((told.newest if now_s - told.at_s <= SILENT_S else task.newest) - told.version for task, told in of_it)
    silent = heard_s > SILENT_S and behind > 0
    return ReplicaNow(
        len(of_it),
        sum(told.won for _, told in of_it),
        sum(told.decided for _, told in of_it),
        behind,
        0 if silent else sum(task.publisher == name for task in tasks),
        heard_s,
        silent,
    )


def _decision_logs() -> dict[str, str]:
    """By pipeline what its decision log is called, whether there is one or not."""
    found = {}
    for name, pipeline in pipelines.found().pipelines.items():
        try:
            found[name] = loading.load_topology(pipeline).decisions
        except Faulty:
            continue
    return found


def _tail(consumer: Consumer, topic: str, partitions: Sequence[int]) -> list[Heard]:
    """The end of each partition, in order. Raises KafkaException when Kafka does not answer."""
    from confluent_kafka import TopicPartition

    deadline = time.monotonic() + READ_S
    oldest_s = time.time() - WINDOW_S
    found: dict[int, list[Heard]] = {partition: [] for partition in partitions}
    lows, ranges = {}, {}
    for partition in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=CALL_S) or (0, 0)
        lows[partition] = low
        if low < high:
            ranges[partition] = (max(low, high - RECORDS_FIRST), high)
    while ranges and time.monotonic() < deadline:
        earlier = {}
        for partition, records in _between(consumer, topic, ranges, deadline).items():
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
    consumer: Consumer, topic: str, ranges: Mapping[int, tuple[int, int]], deadline: float
) -> dict[int, list[Heard]]:
    """By partition the records from one offset up to another; without those that the time does not suffice for. Raises
    KafkaException.
    """
    from confluent_kafka import KafkaException, TopicPartition

    proposals = AvroProposals()
    places = [TopicPartition(topic, partition, start) for partition, (start, _) in ranges.items()]
    consumer.assign(places)
    consumer.resume(places)
    found: dict[int, list[Heard]] = {partition: [] for partition in ranges}
    left = {partition: end for partition, (_, end) in ranges.items()}
    while left and time.monotonic() < deadline:
        for message in consumer.consume(500, timeout=0.2):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            if partition not in left:
                continue
            at_s = message.timestamp()[1] / 1000
            found[partition].append(Heard(partition, offset, at_s, proposals.glance(value), len(value or b"")))
            if offset + 1 >= left[partition]:
                del left[partition]
                consumer.pause([TopicPartition(topic, partition)])
    return {partition: records for partition, records in found.items() if partition not in left}
