"""Requests that every broker answers, such as the description of a topic, and changes that every broker forwards.

librdkafka sends these requests to the controller from the last metadata. A KRaft cluster names an arbitrary broker as the
controller, even a killed broker until its session ends. librdkafka then waits for this broker, without a retry at the rest.
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

# A live broker answers in milliseconds. A busy broker has more time with each attempt.
_FIRST_TRY_S, _TRY_MAX_S = 0.3, 2.0
# Metadata have a random broker as the controller. With this number of attempts, a responding broker is almost certain.
_LOOKS = 10
_LOOK_S = 1.0
_SILENT = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)


def any_broker(
    admin: AdminClient, question: Callable[[float], Mapping[K, "Future[V]"]], timeout_s: float
) -> Callable[[], Mapping[K, "Future[V]"]]:
    """Send a request now, and return a function that waits for the responses and retries with the next broker.

    Args:
        question: Send the request once, with a time-out in seconds.
        timeout_s: The time in seconds after which the client tries no further broker.

    Returns:
        A function that returns the finished futures. If no broker responds, a future has a `KafkaException`.
    """
    first = question(min(_FIRST_TRY_S, timeout_s))

    def wait() -> Mapping[K, "Future[V]"]:
        # The deadline begins here, because the caller may wait much later than at the request.
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
    """Request descriptions of topics from `any_broker`, with the client's allowed operations if `operations`."""
    named = TopicCollection(list(topics))

    def ask(seconds: float) -> Mapping[str, "Future[TopicDescription]"]:
        return admin.describe_topics(named, request_timeout=seconds, include_authorized_operations=operations)

    return any_broker(admin, ask, timeout_s)


def describe_configs(
    admin: AdminClient, resources: list[ConfigResource], timeout_s: float
) -> Callable[[], Mapping[ConfigResource, "Future[dict[str, Any]]"]]:
    """Request the settings of resources from `any_broker`. Only the broker itself has a broker's own settings."""
    return any_broker(admin, lambda seconds: admin.describe_configs(resources, request_timeout=seconds), timeout_s)


def create_topics(admin: AdminClient, topics: list[NewTopic], timeout_s: float) -> Mapping[str, "Future[None]"]:
    """Create topics through a responding broker. The request is sent once, because a retry would find the created topics."""
    describe_topics(admin, [topics[0].topic], timeout_s)()
    made: dict[str, Future[None]] = admin.create_topics(topics, request_timeout=timeout_s)
    return made


def delete_topics(admin: AdminClient, topics: list[str], timeout_s: float) -> Mapping[str, "Future[None]"]:
    """Delete topics through a responding broker."""
    describe_topics(admin, topics[:1], timeout_s)()
    deleted: dict[str, Future[None]] = admin.delete_topics(topics, request_timeout=timeout_s)
    return deleted


def _is_silent(answer: "Future[Any]") -> bool:
    error = answer.exception()
    return isinstance(error, KafkaException) and error.args[0].code() in _SILENT


def _controller(admin: AdminClient, silent: set[int]) -> int:
    """Request metadata until the controller is not in `silent`. The client sends the next request to this controller."""
    for _ in range(_LOOKS):
        found = admin.list_topics(timeout=_LOOK_S)
        if silent >= found.brokers.keys():
            silent.clear()
        if found.controller_id not in silent:
            break
    controller: int = found.controller_id
    return controller
