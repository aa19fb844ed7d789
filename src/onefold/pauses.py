"""Pauses of single pipelines: `onefold pause` writes a pause, `onefold resume` ends the pause, and every service follows.

Each pipeline has its own topic of pauses, compacted and with a single partition. A record is a pause, and an empty record is
its end. Pauses are in Kafka, because processors, sinks and workers all have a connection to Kafka, but a processor has none to
PostgreSQL. The topic's name begins with the pipeline's name, so the rights for the pipeline's topics include the topic of
pauses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import structlog
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from onefold import kafka_client, names
from onefold.process import ServiceProcess
from onefold.telemetry import SILENT, Telemetry

log = structlog.get_logger()

#: The version of a record. A record with a newer version is still a pause.
VERSION = 1
_KEY = b"pause"
# The interval of the search for a topic that does not exist or that Kafka hides.
_AGAIN_S = 5.0
# The time-out of a request. A healthy broker answers in milliseconds.
_METADATA_S = 0.5
_BATCH = 100
_EPOCH = datetime.fromtimestamp(0, UTC)
_ROUND_S = 0.3
# After this time without a response, a service starts to work: a partition without a leader must not stop a running pipeline.
# The time is longer than the election of a new leader.
_KNOWN_S = 20.0


@dataclass(frozen=True)
class Pause:
    """A pause before its end.

    Attributes:
        at_ms: The beginning, in milliseconds since 1970.
        by: The person, as `user@host`.
        reason: The person's reason, or "".
    """

    at_ms: int
    by: str
    reason: str = ""

    def __str__(self) -> str:
        since = _EPOCH + timedelta(milliseconds=self.at_ms)
        return f"paused since {since:%Y-%m-%d %H:%M:%S} UTC by {self.by}{f': {self.reason}' if self.reason else ''}"

    def encode(self) -> bytes:
        """The value of the record."""
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes, at_ms: int) -> Self:
        """Decode a record. An unreadable value is also a pause, because its writer wanted to pause the pipeline.

        Args:
            at_ms: The time of the record.
        """
        try:
            found = json.loads(value)
            made = cls(int(found["at_ms"]), str(found["by"]), str(found["reason"]))
            str(made)  # raises OverflowError for an impossible time
            return made
        except (ValueError, KeyError, TypeError, OverflowError):
            return cls(at_ms, "a record that cannot be read")


class Pauses:
    """A follower of the pauses of several pipelines. Not thread-safe.

    Args:
        client: The settings of librdkafka.

    Attributes:
        trouble: For each pipeline without a right to read its pauses, a sentence. The last known pause stays in effect.
    """

    def __init__(self, client: Mapping[str, Any], pipelines: Iterable[str]) -> None:
        self._names = {names.pauses_topic(name): name for name in pipelines}
        self._client = client
        self._consumer = kafka_client.consumer({**client, "enable.partition.eof": True})
        self._followed: list[str] = []
        self._again_at = time.monotonic()
        # The last record of each topic, which becomes effective only at the end of the topic.
        self._read: dict[str, Pause | None] = {}
        self._found: dict[str, Pause | None] = {}
        self.trouble: dict[str, str] = {}

    def look(self, wait_s: float = 0.0) -> None:
        """Process the new records.

        Args:
            wait_s: The time to wait for the first record.
        """
        if len(self._followed) < len(self._names) and time.monotonic() >= self._again_at:
            self._find_topics()
        for message in (*self._consumer.consume(1, wait_s), *self._consumer.consume(_BATCH, 0)):
            self._take(message)

    def _find_topics(self) -> None:
        """Assign the existing topics to the consumer, which reports no event for a missing topic."""
        self._again_at, before = time.monotonic() + _AGAIN_S, len(self._followed)
        for topic, name in self._names.items():
            if topic in self._followed:
                continue
            try:
                error = self._consumer.list_topics(topic, _METADATA_S).topics[topic].error
            except KafkaException:
                self._again_at = time.monotonic() + _ROUND_S
                break  # no broker answered in time
            if error is None:
                self._followed.append(topic)
            else:
                self._refused(name, error)
        if len(self._followed) > before:
            self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in self._followed])

    def _take(self, message: Message) -> None:
        name, error = self._names.get(message.topic() or ""), message.error()
        if name is None:
            return
        if error is None:
            value = message.value()
            self._read[name] = Pause.decode(value, message.timestamp()[1]) if value else None
        elif error.code() == KafkaError._PARTITION_EOF:
            self._found[name] = self._read.get(name)
            self.trouble.pop(name, None)
        else:
            self._refused(name, error)

    def _refused(self, name: str, error: KafkaError) -> None:
        """Handle an error of a topic. For every error not handled here, librdkafka itself retries."""
        topic = names.pauses_topic(name)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            who = kafka_client.identity(self._client)
            self.trouble[name] = f"{who} has no right to read {topic}: `onefold pause` does not reach this process"
            self._found.setdefault(name, None)
        elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._found[name] = None
        elif error.code() != KafkaError._AUTO_OFFSET_RESET:
            return
        self._read.pop(name, None)
        if topic in self._followed:
            self._followed.remove(topic)

    def knows(self, pipeline: str) -> bool:
        """Whether the topic has been read to its end once, or Kafka has reported that the topic is missing or not readable."""
        return pipeline in self._found

    def of(self, pipeline: str) -> Pause | None:
        """The last known pause of a pipeline; None without a pause."""
        return self._found.get(pipeline)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


class Pausable:
    """The pauses for the main thread of a service of a single pipeline, which alternates between work and waiting.

    Args:
        client: The settings of librdkafka.
        process: The process, whose status shows the pause.
        telemetry: The telemetry, for the metric of pauses.
    """

    def __init__(
        self, client: Mapping[str, Any], pipeline: str, process: ServiceProcess, telemetry: Telemetry = SILENT
    ) -> None:
        self._client, self._pipeline, self._process, self._telemetry = client, pipeline, process, telemetry
        self._pauses = Pauses(client, [pipeline])
        self._said = ""

    def halts(self) -> bool:
        """Whether the service must stop its work, because the pipeline is paused.

        The call takes microseconds. While Kafka is unavailable or the topic is missing, some calls take the time of a request.
        """
        self._pauses.look()
        return self._pauses.of(self._pipeline) is not None

    def waits(self) -> bool:
        """Wait for the end of a pause, or of the process.

        Returns whether the pipeline was paused. During a pause, the pipeline's topics may have changed.
        """
        waited, deadline = False, time.monotonic() + _KNOWN_S
        while not self._process.stop.is_set():
            self._pauses.look(_ROUND_S)
            pause = self._pauses.of(self._pipeline)
            why = f"{self._pipeline} is {pause}" if pause is not None else ""
            self._telemetry.paused(self._pipeline, why)
            self._say(why or self._pauses.trouble.get(self._pipeline, ""))
            known = self._pauses.knows(self._pipeline) or time.monotonic() > deadline
            if pause is None and (known or _is_useless(self._client)):
                break
            waited = waited or bool(why)
            # A paused process is healthy for readiness and health checks, because the pause is intended.
            state = "running" if why else "starting"
            self._process.status.write(state, why or "asking Kafka whether the pipeline is paused")
        return waited

    def _say(self, what: str) -> None:
        if what and what != self._said:
            log.warning(what)
        elif self._said and not what:
            log.info(f"{self._pipeline} is not paused any more")
        self._said = what

    def close(self) -> None:
        """Close the consumer."""
        self._pauses.close()


class Switches:
    """The paused pipelines of a service of several pipelines, and the changes since the last call.

    Args:
        telemetry: The telemetry, for the metric of pauses.
    """

    def __init__(self, client: Mapping[str, Any], pipelines: Iterable[str], telemetry: Telemetry = SILENT) -> None:
        self._client, self._names, self._telemetry = client, list(pipelines), telemetry
        self._pauses = Pauses(client, self._names)
        self._paused: dict[str, str] = {}
        self._troubles: Mapping[str, str] = {}

    def begin(self) -> None:
        """Wait, for a bounded time, until the pauses of all pipelines are known."""
        deadline = time.monotonic() + _KNOWN_S
        while not all(map(self._pauses.knows, self._names)) and time.monotonic() < deadline:
            self._pauses.look(_ROUND_S)
            if _is_useless(self._client):
                break

    def changed(self) -> tuple[list[str], list[str]]:
        """The newly paused pipelines and the resumed pipelines since the last call."""
        self._pauses.look()
        paused = {name: f"{name} is {pause}" for name in self._names if (pause := self._pauses.of(name)) is not None}
        began = [name for name in paused if name not in self._paused]
        ended = [name for name in self._paused if name not in paused]
        self._paused = paused
        for name in (*began, *ended):
            self._telemetry.paused(name, paused.get(name, ""))
            log.warning(paused[name]) if name in paused else log.info(f"{name} is resumed")
        for name, trouble in self._pauses.trouble.items() - self._troubles.items():
            log.warning(trouble, domain=name)
        self._troubles = dict(self._pauses.trouble)
        return began, ended

    def __contains__(self, pipeline: str) -> bool:
        """Whether the pipeline is paused, as of the last call of `changed`."""
        return pipeline in self._paused

    def sentences(self) -> list[str]:
        """A sentence for each paused pipeline."""
        return list(self._paused.values())

    def close(self) -> None:
        """Close the consumer."""
        self._pauses.close()


def _is_useless(client: Mapping[str, Any]) -> bool:
    """Whether the client can use no broker. A service then does not wait for the pauses, and its start reports the reason."""
    trouble = kafka_client.trouble(client)
    return trouble is not None and not trouble.partial


def now(client: Mapping[str, Any], pipelines: Iterable[str], timeout_s: float) -> tuple[dict[str, Pause], list[str]]:
    """The pauses of these pipelines, and the pipelines with unknown pauses after `timeout_s`."""
    asked = list(pipelines)
    deadline = time.monotonic() + timeout_s
    with closing(Pauses(client, asked)) as pauses:
        while not all(map(pauses.knows, asked)) and time.monotonic() < deadline:
            pauses.look(0.1)
        found = {name: pause for name in asked if (pause := pauses.of(name)) is not None}
        return found, [name for name in asked if not pauses.knows(name)]


def write(client: Mapping[str, Any], pipeline: str, pause: Pause | None, timeout_s: float) -> None:
    """Write a pause, or its end.

    Raises:
        KafkaException: Kafka does not acknowledge the record.
    """
    failed: list[KafkaError] = []
    producer = kafka_client.producer(
        {**client, "enable.idempotence": True, "message.timeout.ms": round(1000 * timeout_s)}
    )
    producer.produce(
        names.pauses_topic(pipeline),
        pause.encode() if pause is not None else None,
        _KEY,
        0,
        on_delivery=lambda error, message: failed.append(error) if error is not None else None,
    )
    if producer.flush(timeout_s + 1) or failed:
        raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
