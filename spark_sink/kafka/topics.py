"""What Kafka says about topics: their identity, how far they reach, and single records. Everything else Spark reads."""

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
from onefold.spark_sink.landing.protocols import Reach, Record

# Long enough for a broker that is busy starting, short enough for a status that tells the truth.
_PATIENCE_S = 5.0


class Topics:
    """The admin client and the consumer of a sink, for all queries and their threads. Every method raises Retriable, with the
    reason, if Kafka does not answer in `patience_s`.
    """

    def __init__(self, bootstrap_servers: str, kafka_options: dict[str, str], patience_s: float = _PATIENCE_S) -> None:
        self._servers = bootstrap_servers
        self._patience_s = patience_s
        self._reads = threading.Lock()  # a consumer gives the records of one assignment at a time
        self._connect(kafka_options)

    def _connect(self, kafka_options: dict[str, str]) -> None:
        settings = {**kafka_options, "bootstrap.servers": self._servers}
        self._unauthenticated = False
        self._admin = kafka_client.admin(settings)
        self._consumer = kafka_client.consumer(
            {
                **settings,
                # single records are wanted: a fetch that waits at the end of one partition holds up the next one
                "fetch.wait.max.ms": 5,
                "enable.partition.eof": True,  # "there is none" is an answer too, and should not take 5 s
                # what a record *is* does not depend on transactions; and the log's end means its real end
                "isolation.level": "read_uncommitted",
            }
        )

    def renew(self, kafka_options: dict[str, str]) -> None:
        """Connect with these settings, if Kafka has refused the present login: a client reads its certificates once."""
        with self._reads:
            if self._unauthenticated:
                self._consumer.close()
                self._connect(kafka_options)

    def close(self) -> None:
        """Let go of the connections."""
        with self._reads:
            self._consumer.close()

    def ids(self, topics: list[str]) -> dict[str, str]:
        """The ids of `topics`. Kafka gives a topic that is made anew under an old name another one."""
        return {topic: str(description.topic_id) for topic, description in self._describe(topics).items()}

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        """How far every partition of `topics` reaches."""
        described = self._describe(topics)
        places = [(topic, partition.id) for topic in topics for partition in described[topic].partitions]
        with self._kafka_errors():
            starts = kafka_offsets.starts(self._admin, places, self._patience_s)
            ends = kafka_offsets.high_watermarks(self._admin, places, self._patience_s)
        return {place: Reach(starts[place], ends[place]) for place in places}

    def ends(self, topics: list[str]) -> dict[Partition, int]:
        """The offset after the last one that is committed, per partition."""
        with self._kafka_errors():
            places = kafka_offsets.partitions(self._admin, topics, self._patience_s)
            if not places:
                raise Retriable(Code.TOPIC_MISSING, f"Kafka at {self._servers} shows none of the topics")
            return kafka_offsets.stable_ends(self._admin, places, self._patience_s)

    def record_from(self, topic: str, partition: int, offset: int) -> Record | None:
        """The first record at `offset` or later; None when there is none."""
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
        return Record(at, message.key(), message.value(), message.timestamp()[1], headers)

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        """The fingerprint of the record at exactly `last.offset`; None when there is no record there."""
        record = self.record_from(topic, partition, last.offset)
        return record.fingerprint() if record is not None and record.offset == last.offset else None

    def is_compacted(self, topic: str) -> bool:
        """May Kafka remove single records of the topic, because a later one has the same key?"""
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
        """Turn an error of confluent-kafka into one sentence."""
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
