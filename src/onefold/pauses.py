"""Pauses of single pipelines: `onefold pause` writes one, `onefold resume` ends it, and every service follows them.

Each pipeline has a topic of its own for this, compacted and with one partition. A record is a pause, an empty record its end. The
topic is Kafka's, because Kafka is the one server that processors, sinks and workers all have; a processor has no PostgreSQL. The
name begins with that of the pipeline, so the rights of a service for the topics of its pipeline include this one.
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

#: Of a record. A newer one still pauses.
VERSION = 1
_KEY = b"pause"
# A topic that is not there, or that Kafka hides, is looked for again after so long.
_AGAIN_S = 5.0
# One question; a healthy broker answers in milliseconds.
_METADATA_S = 0.5
_BATCH = 100
_EPOCH = datetime.fromtimestamp(0, UTC)
_ROUND_S = 0.3
# Who has not learned it by then works: one partition without a leader must not stop a pipeline that nobody has paused. A new
# leader takes ten seconds.
_KNOWN_S = 20.0


@dataclass(frozen=True)
class Pause:
    """A pause that has not ended.

    Attributes:
        at_ms: since when, in milliseconds since 1970.
        by: who paused, as `user@host`.
        reason: what this person said about it, or "".
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
        """A value that cannot be read pauses too: whoever wrote it wanted the pipeline to stand still.

        Args:
            at_ms: the time of the record.
        """
        try:
            found = json.loads(value)
            made = cls(int(found["at_ms"]), str(found["by"]), str(found["reason"]))
            str(made)  # a time may be none
            return made
        except (ValueError, KeyError, TypeError, OverflowError):
            return cls(at_ms, "a record that cannot be read")


class Pauses:
    """Follows the pauses of some pipelines. Not for use by several threads.

    Args:
        client: settings of librdkafka.

    Attributes:
        trouble: per pipeline why Kafka does not show the pauses, in one sentence: a missing right. What was known before holds.
    """

    def __init__(self, client: Mapping[str, Any], pipelines: Iterable[str]) -> None:
        self._names = {names.pauses_topic(name): name for name in pipelines}
        self._client = client
        self._consumer = kafka_client.consumer({**client, "enable.partition.eof": True})
        self._followed: list[str] = []
        self._again_at = time.monotonic()
        # As of the last record that was read. What counts is only known at the end of the topic.
        self._read: dict[str, Pause | None] = {}
        self._found: dict[str, Pause | None] = {}
        self.trouble: dict[str, str] = {}

    def look(self, wait_s: float = 0.0) -> None:
        """Take what has come.

        Args:
            wait_s: how long to wait for the first record.
        """
        if len(self._followed) < len(self._names) and time.monotonic() >= self._again_at:
            self._find_topics()
        for message in (*self._consumer.consume(1, wait_s), *self._consumer.consume(_BATCH, 0)):
            self._take(message)

    def _find_topics(self) -> None:
        """Follow the topics that are there. A consumer is told nothing of one that is not."""
        self._again_at, before = time.monotonic() + _AGAIN_S, len(self._followed)
        for topic, name in self._names.items():
            if topic in self._followed:
                continue
            try:
                error = self._consumer.list_topics(topic, _METADATA_S).topics[topic].error
            except KafkaException:
                self._again_at = time.monotonic() + _ROUND_S
                break  # no broker answers in time
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
        """What else an error is, librdkafka asks again by itself."""
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
        """Whether the topic has been read to its end once, or Kafka has said that there is nothing to read."""
        return pipeline in self._found

    def of(self, pipeline: str) -> Pause | None:
        """The pause of a pipeline now, as far as it is known."""
        return self._found.get(pipeline)

    def close(self) -> None:
        """Let go of the client."""
        self._consumer.close()


class Pausable:
    """For the main thread of a service of one pipeline, which works until it halts, and waits while the pipeline is paused.

    Args:
        client: settings of librdkafka.
        process: gets the state while the pipeline is paused.
        telemetry: told whether it is paused.
    """

    def __init__(
        self, client: Mapping[str, Any], pipeline: str, process: ServiceProcess, telemetry: Telemetry = SILENT
    ) -> None:
        self._client, self._pipeline, self._process, self._telemetry = client, pipeline, process, telemetry
        self._pauses = Pauses(client, [pipeline])
        self._said = ""

    def halts(self) -> bool:
        """Whether to stop what is being done, because the pipeline is paused. Takes microseconds, and while Kafka is away or the
        topic is missing now and then as long as one question.
        """
        self._pauses.look()
        return self._pauses.of(self._pipeline) is not None

    def waits(self) -> bool:
        """Wait for the end of a pause, or of the process. Returns whether there was a pause: topics may be others now."""
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
            # Readiness and health checks take it for a process that is well: it does what it was asked to.
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
        """Let go of the client."""
        self._pauses.close()


class Switches:
    """Which pipelines of a service of several are paused, and what has changed since the last look.

    Args:
        telemetry: told whether each is paused.
    """

    def __init__(self, client: Mapping[str, Any], pipelines: Iterable[str], telemetry: Telemetry = SILENT) -> None:
        self._client, self._names, self._telemetry = client, list(pipelines), telemetry
        self._pauses = Pauses(client, self._names)
        self._paused: dict[str, str] = {}
        self._troubles: Mapping[str, str] = {}

    def begin(self) -> None:
        """Wait until it is known which are paused, but not for long."""
        deadline = time.monotonic() + _KNOWN_S
        while not all(map(self._pauses.knows, self._names)) and time.monotonic() < deadline:
            self._pauses.look(_ROUND_S)
            if _is_useless(self._client):
                break

    def changed(self) -> tuple[list[str], list[str]]:
        """The pipelines whose pause has begun since the last call, and those whose pause has ended."""
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
        """One for each pipeline that is paused."""
        return list(self._paused.values())

    def close(self) -> None:
        """Let go of the client."""
        self._pauses.close()


def _is_useless(client: Mapping[str, Any]) -> bool:
    """Whether no broker lets this client in. Then nothing is processed, paused or not, and whoever begins says why."""
    trouble = kafka_client.trouble(client)
    return trouble is not None and not trouble.partial


def now(client: Mapping[str, Any], pipelines: Iterable[str], timeout_s: float) -> tuple[dict[str, Pause], list[str]]:
    """The pauses of these pipelines, and the pipelines of which Kafka has not said within `timeout_s` whether they are paused."""
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
        KafkaException: Kafka does not take it.
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
