"""Clients of Kafka that are made once: an idle one is false, for it has the length of its queue."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import ProcessorError, Retriable
from onefold.processor.io.decision_log import KafkaDecisionLog
from onefold.processor.io.tick_writer import TickWriter
from onefold.processor.loading import topology_of
from onefold.processor.tasks import IN_MEMORY, Tasks
from tests.support.coded import raises

CLIENT = {"bootstrap.servers": "127.0.0.1:9"}
ADMIN: Any = SimpleNamespace()
NOTHING: Any = SimpleNamespace(consume=lambda count, timeout_s: [], close=lambda: None)


class Asked(Exception):
    """It was this one."""


class Idle:
    """An admin client has a length, that of its queue: it is false while it has nothing to do."""

    def __len__(self) -> int:
        return 0

    def describe_topics(self, *_: Any, **__: Any) -> Any:
        raise Asked


class Undelivered:
    """An appender whose records do not arrive, as a poll of any task finds out."""

    def __init__(self) -> None:
        self._failed: list[Callable[[ProcessorError], None]] = []

    def append(self, topic: str, partition: int, value: bytes, failed: Callable[[ProcessorError], None]) -> None:
        self._failed.append(failed)

    def poll(self) -> None:
        while self._failed:
            self._failed.pop()(Retriable(Code.KAFKA_CALL_FAILED, "not delivered"))


class Delivered:
    """A producer whose queue is empty again."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def __len__(self) -> int:
        return 0

    def produce(self, topic: str, value: bytes, *_: object, **__: object) -> None:
        self.written.append(value)

    def poll(self, timeout_s: float) -> None:
        pass


def _no_codec() -> Any:
    raise NotImplementedError


def test_a_client_that_is_idle_is_used_all_the_same() -> None:
    admin: Any = Idle()
    log = KafkaDecisionLog("orders.decisions", 0, CLIENT, admin)
    with pytest.raises(Asked):
        log.identity()
    log.close()


def test_tasks_share_a_producer_of_proposals_until_it_has_failed() -> None:
    """A producer with a fatal error takes no record again. A record that is too large says nothing about it."""
    made = Tasks(topology_of("runner"), _no_codec, CLIENT, ADMIN, "a", 2, 2, IN_MEMORY)
    first, second = made._log(0), made._log(1)
    assert first._appender is second._appender
    first._appender._meaning(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert made._log(0)._appender is first._appender
    first._appender._meaning(KafkaError(KafkaError._FATAL))
    assert made._log(0)._appender is made._log(1)._appender is not first._appender


def test_what_one_task_could_not_append_is_no_other_tasks_failure() -> None:
    appender: Any = Undelivered()
    logs = [KafkaDecisionLog("orders.decisions", task, CLIENT, ADMIN, appender) for task in range(2)]
    for log in logs:
        log._consumer = NOTHING
    logs[0].append(b"proposal")
    assert logs[1].read(0.0) == []
    with raises(Retriable, Code.KAFKA_CALL_FAILED):
        logs[0].read(0.0)
    assert logs[0].read(0.0) == []


def test_one_producer_writes_all_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is false, too, when all that it had is delivered."""
    made: list[Delivered] = []

    def producer(settings: object) -> Delivered:
        made.append(Delivered())
        return made[-1]

    monkeypatch.setattr(kafka_client, "producer", producer)
    ticking: Any = SimpleNamespace(tick=SimpleNamespace(every_ms=1_000), ticks="orders.ticks")
    writer = TickWriter(ticking, CLIENT)
    for at_ms in (1_000, 2_000):
        writer.write([(0, at_ms)])
    assert [len(one.written) for one in made] == [2]


# The client is garbage while its request is on the way, and garbage is collected in the thread that brings the time-out.
LEFT_BEHIND = """
import _thread, gc
from confluent_kafka.admin import ConfigResource, ResourceType
from onefold import kafka_client

kafka_client._ANSWERED_S = 0.2
ended = _thread.allocate_lock()
ended.acquire()

class Flag:
    def __del__(self):
        ended.release()

def leave():
    client = kafka_client.admin({"bootstrap.servers": "127.0.0.1:9"})
    client.itself, client.flag = client, Flag()
    client.describe_configs([ConfigResource(ResourceType.TOPIC, "x")], request_timeout=0.5)

gc.disable()
leave()
gc.set_threshold(1)
gc.enable()
raise SystemExit(0 if ended.acquire(True, 30) else 1)
"""


def test_an_admin_client_is_never_freed_in_a_thread_of_its_own() -> None:
    """librdkafka ends the process then. An exception of an answer keeps its client for the garbage collector."""
    ended = subprocess.run([sys.executable, "-c", LEFT_BEHIND], check=False, capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
