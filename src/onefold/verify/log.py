"""Read topics from the beginning up to given ends, completely.

The consumer reads committed records only (read_committed). The end of a partition is its last stable offset. A partition is
read completely when the consumer's position reaches the end, behind control records and aborted records. If the high watermark
stays above the last stable offset, a transaction is open, and the records behind it cannot be verified.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # exported, as no checker sees

from onefold import kafka_ask, kafka_client, kafka_offsets
from onefold.error_codes import Code
from onefold.verify.record import ReadRecord
from onefold.verify.verdict import CannotTell

#: (topic, partition)
Place = tuple[str, int]

# An available broker answers in milliseconds; a restarting broker is back within seconds.
_ANSWER_S = 15.0
# After this time without a record or the end of a partition, no more will come.
_NO_PROGRESS_S = 30.0
_BATCH = 2000
# The number of records from the end to read first, and the factor for further attempts.
_LAST, _MORE = 1_000, 100


@dataclass(frozen=True)
class TopicIdentity:
    """The id of a topic, and the number of its partitions."""

    topic_id: str
    partitions: int


class Log:
    """Reads some topics side by side. Close after use.

    Args:
        answer_s: the time limit for an answer of the broker.
        batch: the number of records to take from the client at once.
    """

    def __init__(
        self,
        client: dict[str, Any],
        topics: Iterable[str],
        answer_s: float = _ANSWER_S,
        batch: int = _BATCH,
    ) -> None:
        self._servers = client["bootstrap.servers"]
        self._answer_s = answer_s
        self._batch = batch
        self._admin = kafka_client.admin(client)
        #: Kafka's own id of the cluster.
        self.cluster_id = self._cluster_id()
        self.topics = self._describe(list(topics))
        self.places: list[Place] = [(name, p) for name, topic in self.topics.items() for p in range(topic.partitions)]
        self.positions: dict[Place, int] = dict.fromkeys(self.places, 0)
        #: The number of records read.
        self.records = 0
        self._consumer = kafka_client.consumer({**client, "enable.partition.eof": True, "fetch.wait.max.ms": 50})
        # Assigned by the first read, and only once: after two assignments in a row, the consumer may start at the first
        # offsets.
        self._begin_at = [TopicPartition(name, p, OFFSET_BEGINNING) for name, p in self.places]

    def check_partitions(self, topics: Iterable[str]) -> None:
        """Check that these topics have the same number of partitions; raises `CannotTell`."""
        counts = {topic: self.topics[topic].partitions for topic in topics}
        fewest = min(counts, key=lambda topic: counts[topic])
        for topic, count in counts.items():
            if count != counts[fewest]:
                raise CannotTell(
                    Code.PARTITIONS_CHANGED,
                    f"topic {topic} has {count} partitions, and {fewest} {counts[fewest]}: no processor reads all of them",
                )

    def check_states(self, pipeline: str, progress: Mapping[str, Any], topic: str) -> None:
        """Check that a progress record names the number of partitions of an input, `topic`; raises `CannotTell`. Older progress
        records name no number.
        """
        states, now = progress.get("partitions"), self.topics[topic].partitions
        if states not in (None, now):
            raise CannotTell(
                Code.PARTITIONS_CHANGED,
                f"the states of {pipeline} are of {states} partitions, and its topics have {now}: keys would move away from "
                f"them. Start over with `onefold reset {pipeline}`",
            )

    def go_on(self, positions: dict[Place, int]) -> None:
        """Read from these offsets on, instead of from the beginning; only before the first read."""
        self.positions = dict(positions)
        self._begin_at = [TopicPartition(name, p, at) for (name, p), at in positions.items()]

    def hold(self, places: Iterable[Place], held: bool) -> None:
        """Pause or resume reading these partitions."""
        change = self._consumer.pause if held else self._consumer.resume
        change([TopicPartition(name, p) for name, p in places])

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()

    def starts(self) -> dict[Place, int]:
        """Return the first offset of each partition still in the log."""
        return self._offsets(kafka_offsets.starts)

    def stable_ends(self) -> dict[Place, int]:
        """Return the last stable offset of each partition."""
        return self._offsets(kafka_offsets.stable_ends)

    def high_ends(self) -> dict[Place, int]:
        """Return the high watermark of each partition, behind open transactions."""
        return self._offsets(kafka_offsets.high_watermarks)

    def read(
        self, ends: dict[Place, int], take: Callable[[ReadRecord], None], alive: Callable[[], object] = lambda: None
    ) -> None:
        """Hand over every record before `ends` (and maybe a few after), once each; only a record with an error in `take` comes
        again.

        Args:
            alive: called repeatedly while records come.

        Raises:
            CannotTell: a partition returns no more records before its end.
        """
        if self._begin_at:
            self._consumer.assign(self._begin_at)
            self._begin_at = []
        positions = self.positions
        behind = {place for place, end in ends.items() if positions[place] < end}
        quiet_since = time.monotonic()
        while behind:
            messages = self._consumer.consume(self._batch, timeout=0.2)
            try:
                for message in messages:
                    self._take(message, take)
            except BaseException:
                # The client's position is after the whole batch, so the next read must start at the first record not taken.
                self._begin_at = [
                    TopicPartition(name, p, at or OFFSET_BEGINNING) for (name, p), at in positions.items()
                ]
                raise
            behind = {place for place in behind if positions[place] < ends[place]}
            if messages:
                quiet_since = time.monotonic()
                alive()
            elif behind and time.monotonic() - quiet_since > _NO_PROGRESS_S:
                topic, partition = min(behind)
                at, end = positions[topic, partition], ends[topic, partition]
                raise CannotTell(
                    Code.TOPIC_UNREADABLE,
                    f"{topic}/{partition} can be read only up to offset {at}, and it ends at {end}",
                )

    def _take(self, message: Message, take: Callable[[ReadRecord], None]) -> None:
        error = message.error()
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            code = Code.KAFKA_RIGHT if error.code() in kafka_client.FORBIDDEN else Code.KAFKA_CALL_FAILED
            raise CannotTell(code, f"{topic or 'the log'} cannot be read: {error.str()}")
        assert topic is not None, "records and ends are of a topic"
        assert partition is not None, "and of a partition"
        assert offset is not None, "and have their place there"
        place, positions = (topic, partition), self.positions
        if error is not None:
            positions[place] = max(offset, positions[place])
        elif offset >= positions[place]:  # a repeated record would look like a doubled output
            headers: Any = message.headers() or _NO_HEADERS
            self.records += 1
            clock, timestamp_ms = message.timestamp()
            known_ms = None if clock == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
            take(ReadRecord(topic, partition, offset, message.key(), message.value(), headers, known_ms))
            positions[place] = offset + 1

    def compacted(self, topics: Iterable[str]) -> list[str]:
        """Return the topics with compaction, where Kafka may delete records in the middle. Raises `CannotTell`, also for a
        missing right.
        """
        named = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in dict.fromkeys(topics)]
        answers = kafka_ask.describe_configs(self._admin, named, self._answer_s)()
        found = []
        for topic, asked in answers.items():
            try:
                if "compact" in str(asked.result()["cleanup.policy"].value):
                    found.append(topic.name)
            except KafkaException as error:
                if error.args[0].code() in kafka_client.FORBIDDEN:
                    what = f"read the settings of {topic.name} (DescribeConfigs)"
                    raise CannotTell(
                        Code.KAFKA_RIGHT, kafka_client.cannot(self._admin.settings, what).sentence
                    ) from None
                what = f"Kafka at {self._servers} does not say how {topic.name} is set"
                raise cannot_tell(error, self._admin, what) from None
        return found

    def gone(self) -> str:
        """Return the name of a topic that was deleted or recreated; "" if all topics are unchanged. Raises `CannotTell`."""
        asked = kafka_ask.describe_topics(self._admin, [*self.topics], self._answer_s)()
        for name, topic in self.topics.items():
            try:
                if str(asked[name].result().topic_id) != topic.topic_id:
                    return name
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return name
                raise cannot_tell(error, self._admin, f"Kafka at {self._servers} does not answer") from None
        return ""

    def _offsets(self, asked: Callable[[AdminClient, list[Place], float], dict[Place, int]]) -> dict[Place, int]:
        try:
            return asked(self._admin, self.places, self._answer_s)
        except KafkaException as error:
            what = f"Kafka at {self._servers} does not say where topics end"
            raise cannot_tell(error, self._admin, what) from None

    def _cluster_id(self) -> str:
        try:
            return str(self._admin.list_topics(timeout=self._answer_s).cluster_id or "")
        except KafkaException as error:
            raise cannot_tell(error, self._admin, f"Kafka at {self._servers} does not answer") from None

    def _describe(self, names: list[str]) -> dict[str, TopicIdentity]:
        asked = kafka_ask.describe_topics(self._admin, names, self._answer_s)()
        found = {}
        for name in names:
            try:
                answer = asked[name].result()
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise CannotTell(Code.TOPIC_MISSING, f"there is no topic {name}") from None
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise CannotTell(
                        Code.KAFKA_RIGHT, kafka_client.cannot_describe(self._admin, [name]).sentence
                    ) from None
                raise cannot_tell(error, self._admin, f"Kafka at {self._servers} does not answer") from None
            found[name] = TopicIdentity(str(answer.topic_id), len(answer.partitions))
        return found


def cannot_tell(error: KafkaException, admin: kafka_client.Admin, what: str) -> CannotTell:
    """Return why a call failed: the call and Kafka's message, or why the cluster is unreachable."""
    found = kafka_client.explain(error.args[0], admin)
    if found:
        return CannotTell(found.code, found.sentence)
    return CannotTell(Code.KAFKA_CALL_FAILED, f"{what}: {error.args[0].str()}")


def read_last(
    opened: Callable[[dict[str, Any], Iterable[str]], Log],
    client: dict[str, Any],
    topic: str,
    ends: dict[Place, int],
    take: Callable[[ReadRecord], None],
    is_known: Callable[[int], bool],
) -> None:
    """Hand over the last records before `ends` of a topic's partitions. The number of records grows until `is_known` is true
    for each partition, or until the whole partition was read. Records may be handed over repeatedly. Raises `CannotTell`.
    """
    back = _LAST
    while True:
        with closing(opened(client, [topic])) as log:
            starts = log.starts()
            begin = {place: max(starts[place], ends[place] - back) for place in log.places}
            log.go_on(begin)
            log.read({place: ends[place] for place in log.places}, take)
        if all(is_known(partition) or begin[name, partition] == starts[name, partition] for name, partition in begin):
            return
        back *= _MORE


_NO_HEADERS: list[tuple[str, bytes | None]] = []
