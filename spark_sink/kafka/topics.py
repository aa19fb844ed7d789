"""Queries Kafka for the identity and the offsets of topics, and reads single records. Spark reads the batches."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType, TopicDescription  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_ask, kafka_client, kafka_offsets, kafka_reader
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Retriable, Unauthenticated
from onefold.spark_sink.landing.ledger import LastRecord, Partition
from onefold.spark_sink.landing.protocols import KafkaRecord, Reach

# Long enough for a starting broker, and short enough for a current status.
_PATIENCE_S = 5.0


class KafkaTopics:
    """The admin client and the consumer of a sink, for all queries and their threads. Every method raises Retriable, with the
    reason, if Kafka does not respond within `patience_s`.
    """

    def __init__(self, bootstrap_servers: str, kafka_options: dict[str, str], patience_s: float = _PATIENCE_S) -> None:
        self._servers = bootstrap_servers
        self._patience_s = patience_s
        self._reads = threading.Lock()  # the consumer has one assignment at a time
        self._connect(kafka_options)

    def _connect(self, kafka_options: dict[str, str]) -> None:
        settings = {**kafka_options, "bootstrap.servers": self._servers}
        self._unauthenticated = False
        self._admin = kafka_client.admin(settings)
        self._consumer = kafka_client.consumer(
            {
                **settings,
                # The consumer reads single records. A fetch that waits at the end of a partition delays the next read.
                "fetch.wait.max.ms": 5,
                "enable.partition.eof": True,  # detects the end of a partition without waiting for the time-out
                # The identity of a record does not depend on transactions, and the log's end includes open transactions.
                "isolation.level": "read_uncommitted",
            }
        )

    def renew(self, kafka_options: dict[str, str]) -> None:
        """Reconnect with the given settings if Kafka has refused the login. A client only reads certificates at creation."""
        with self._reads:
            if self._unauthenticated:
                self._consumer.close()
                self._connect(kafka_options)

    def close(self) -> None:
        """Close the consumer."""
        with self._reads:
            self._consumer.close()

    def ids(self, topics: list[str]) -> dict[str, str]:
        """The ids of `topics`. A recreated topic has a new id."""
        return {topic: str(description.topic_id) for topic, description in self._describe(topics).items()}

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        """The first and the end offset of every partition of `topics`."""
        described = self._describe(topics)
        places = [(topic, partition.id) for topic in topics for partition in described[topic].partitions]
        with self._kafka_errors():
            starts = kafka_offsets.starts(self._admin, places, self._patience_s)
            ends = kafka_offsets.high_watermarks(self._admin, places, self._patience_s)
        return {place: Reach(starts[place], ends[place]) for place in places}

    def ends(self, topics: list[str]) -> dict[Partition, int]:
        """The offset after the last committed record, per partition (the last stable offset)."""
        with self._kafka_errors():
            places = kafka_offsets.partitions(self._admin, topics, self._patience_s)
            if not places:
                raise Retriable(Code.TOPIC_MISSING, f"Kafka at {self._servers} shows none of the topics")
            return kafka_offsets.stable_ends(self._admin, places, self._patience_s)

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        """The first record at `offset` or later. None: the partition has no such record."""
        place, what = (topic, partition), f"Kafka at {self._servers} does not give {topic}/{partition}@{offset}"

        def failed(place: Partition, error: KafkaError) -> None:
            if error.code() in kafka_client.FORBIDDEN:
                raise Refused(Code.KAFKA_RIGHT, f"{what}: {error.str()}")
            raise Retriable(Code.KAFKA_CALL_FAILED, f"{what}: {error.str()}")

        left_s = kafka_reader.within(self._patience_s)
        with self._reads:
            try:
                found = kafka_reader.messages(self._consumer, {place: offset}, {place: sys.maxsize}, left_s, failed)
                message = next((message for _, message in found), None)
            except TimeoutError:
                raise Retriable(Code.KAFKA_SILENT, f"{what} in {self._patience_s:g} s") from None
            finally:
                self._consumer.unassign()
        if message is None:
            return None
        at = message.offset()
        assert at is not None, "a record lies at an offset"
        headers = frozenset(header[0] for header in message.headers() or ())
        return KafkaRecord(at, message.key(), message.value(), message.timestamp()[1], headers)

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        """The fingerprint of the record at exactly `last.offset`. None: no record has the offset."""
        record = self.record_from(topic, partition, last.offset)
        return record.fingerprint() if record is not None and record.offset == last.offset else None

    def is_compacted(self, topic: str) -> bool:
        """Whether compaction may remove single records of the topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        with self._kafka_errors():
            settings = kafka_ask.describe_configs(self._admin, [resource], self._patience_s)()[resource].result()
        return "compact" in str(settings["cleanup.policy"].value)

    def _describe(self, topics: list[str]) -> dict[str, TopicDescription]:
        found = {}
        with self._kafka_errors():
            for topic, future in kafka_ask.describe_topics(self._admin, topics, self._patience_s)().items():
                try:
                    found[topic] = future.result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        raise
                    raise Refused(
                        Code.KAFKA_RIGHT, kafka_client.cannot_describe(self._admin, [topic]).sentence
                    ) from None
        return found

    @contextmanager
    def _kafka_errors(self) -> Iterator[None]:
        """Convert an error of confluent-kafka into an error of the sink with one sentence."""
        try:
            yield
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if cause.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                missing = f"a topic is missing in Kafka at {self._servers}: {cause.str()}"
                raise Retriable(Code.TOPIC_MISSING, missing) from None
            if cause.code() in kafka_client.FORBIDDEN:
                raise Refused(Code.KAFKA_RIGHT, f"Kafka at {self._servers} refuses: {cause.str()}") from None
            if found := kafka_client.explain(cause, self._admin):
                self._unauthenticated |= found.refused
                raise (Unauthenticated if found.refused else Retriable)(found.code, found.sentence) from None
            raise Retriable(Code.KAFKA_SILENT, f"Kafka at {self._servers} does not answer: {cause.str()}") from None
