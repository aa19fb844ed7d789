"""Questions that every broker can answer, such as what a topic is, and changes that every broker passes on.

librdkafka sends them to the broker that the last metadata name as the controller. A cluster with KRaft names any broker there,
also a killed one until its session ends. librdkafka then waits for that broker, and asks no other one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, TopicDescription  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

K = TypeVar("K")
V = TypeVar("V")

# A live broker answers in milliseconds, and a busy one has longer with each try.
_FIRST_TRY_S, _TRY_MAX_S = 0.3, 2.0
# Metadata name a broker at random: one of three is named so often in a row in one of 60,000 cases.
_LOOKS = 10
_LOOK_S = 1.0
_SILENT = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)


def any_broker(
    admin: AdminClient, question: Callable[[float], Mapping[K, "Future[V]"]], timeout_s: float
) -> Callable[[], Mapping[K, "Future[V]"]]:
    """Ask now, and return what waits for the answers, and asks the next broker when one is silent.

    Args:
        question: asks once, with a time-out in seconds.
        timeout_s: the client asks no other broker after these seconds.

    Returns:
        A function that gives the futures when all have ended. A future of a silent cluster has ended with a `KafkaException`.
    """
    first = question(min(_FIRST_TRY_S, timeout_s))

    def wait() -> Mapping[K, "Future[V]"]:
        # From now on: who asked may have had something else to do for longer than that.
        deadline = time.monotonic() + timeout_s
        asked, try_s, silent = first, _FIRST_TRY_S, set[int]()
        while any(map(_is_silent, asked.values())) and time.monotonic() < deadline:
            with suppress(KafkaException):
                silent.add(_controller(admin, silent))
            asked = question(try_s)
            try_s = min(2 * try_s, _TRY_MAX_S)
        return asked

    return wait


def describe_topics(
    admin: AdminClient, topics: Sequence[str], timeout_s: float, *, operations: bool = False
) -> Callable[[], Mapping[str, "Future[TopicDescription]"]]:
    """Ask `any_broker` what these topics are, and with `operations` what this client may do with them."""
    named = TopicCollection(list(topics))

    def ask(seconds: float) -> Mapping[str, "Future[TopicDescription]"]:
        return admin.describe_topics(named, request_timeout=seconds, include_authorized_operations=operations)

    return any_broker(admin, ask, timeout_s)


def describe_configs(
    admin: AdminClient, resources: list[ConfigResource], timeout_s: float
) -> Callable[[], Mapping[ConfigResource, "Future[dict[str, Any]]"]]:
    """Ask `any_broker` how these resources are set. A broker's own settings only that broker knows."""
    return any_broker(admin, lambda seconds: admin.describe_configs(resources, request_timeout=seconds), timeout_s)


def create_topics(admin: AdminClient, topics: list[NewTopic], timeout_s: float) -> Mapping[str, "Future[None]"]:
    """Make topics, through a broker that has just answered. A change is sent once: a second one would find the first."""
    describe_topics(admin, [topics[0].topic], timeout_s)()
    made: dict[str, Future[None]] = admin.create_topics(topics, request_timeout=timeout_s)
    return made


def delete_topics(admin: AdminClient, topics: list[str], timeout_s: float) -> Mapping[str, "Future[None]"]:
    """Delete topics, through a broker that has just answered."""
    describe_topics(admin, topics[:1], timeout_s)()
    deleted: dict[str, Future[None]] = admin.delete_topics(topics, request_timeout=timeout_s)
    return deleted


def _is_silent(answer: "Future[Any]") -> bool:
    error = answer.exception()
    return isinstance(error, KafkaException) and error.args[0].code() in _SILENT


def _controller(admin: AdminClient, silent: set[int]) -> int:
    """Ask for metadata until they name a controller that was not silent. The client sends the next question there."""
    for _ in range(_LOOKS):
        found = admin.list_topics(timeout=_LOOK_S)
        if silent >= found.brokers.keys():
            silent.clear()
        if found.controller_id not in silent:
            break
    controller: int = found.controller_id
    return controller
