"""The lander, driven by threads: one at a time, in order, and nothing after a failure."""

import threading
from collections.abc import Iterator

import pytest

from onefold.spark_sink.landing.lander import Lander
from onefold.spark_sink.threads import Threads
from tests.support.waiting import eventually


@pytest.fixture
def lander() -> Iterator[Lander]:
    """Closed at the end."""
    made = Lander("test", Threads())
    yield made
    made.close()


def test_whoever_hands_over_goes_on_and_the_next_one_waits(lander: Lander) -> None:
    """Otherwise nothing could be read meanwhile, and a batch could overtake another."""
    go, seen = threading.Event(), []

    def slow() -> None:
        assert go.wait(20)
        seen.append("first")

    lander.hand_over(slow)
    second = threading.Thread(target=lambda: lander.hand_over(lambda: seen.append("second")), daemon=True)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert seen == []

    go.set()
    second.join(20)
    lander.finish()

    assert seen == ["first", "second"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)], ids=["an error", "an exit"])
def test_nothing_is_landed_after_a_failure(lander: Lander, error: BaseException) -> None:
    """And everybody who asks is told the first one."""

    def fail() -> None:
        raise error

    seen: list[str] = []
    lander.hand_over(fail)
    eventually(lambda: lander.failure is error, 10, "kept")
    with pytest.raises(type(error)):
        lander.finish()
    with pytest.raises(type(error)):
        lander.hand_over(lambda: seen.append("landed"))

    lander.close()
    assert seen == []
    assert lander.failure is error


def test_closing_waits_for_what_is_being_landed() -> None:
    lander, entered, go, seen = Lander("test", Threads()), threading.Event(), threading.Event(), []

    def slow() -> None:
        entered.set()
        assert go.wait(20)
        seen.append("landed")

    lander.hand_over(slow)
    assert entered.wait(20)
    closing = threading.Thread(target=lander.close, daemon=True)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()

    go.set()
    closing.join(20)

    assert seen == ["landed"]
    with pytest.raises(RuntimeError, match="nothing is landed any more"):
        lander.hand_over(lambda: seen.append("late"))
