"""A consumer whose close never returns holds up nobody."""

import threading
from typing import Any

import pytest

from onefold import kafka_client


class Closed:
    """A consumer's close, and what it does."""

    def __init__(self, close: Any) -> None:
        self.close = close


def test_a_close_that_ends_is_waited_for() -> None:
    closed = threading.Event()
    consumer: Any = Closed(closed.set)
    assert kafka_client.leave(consumer)
    assert closed.is_set()


def test_a_close_that_never_ends_is_given_up() -> None:
    may_end = threading.Event()
    consumer: Any = Closed(may_end.wait)
    assert not kafka_client.leave(consumer, 0.05)
    may_end.set()


def test_an_error_of_the_close_is_the_callers() -> None:
    def fail() -> None:
        raise RuntimeError("not closed")

    consumer: Any = Closed(fail)
    with pytest.raises(RuntimeError, match="not closed"):
        kafka_client.leave(consumer)
