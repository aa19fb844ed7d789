"""The lander, driven by threads: one at a time, in order, and nothing after a failure."""

import threading
from collections.abc import Iterator

import pytest

from onefold.spark_sink.landing.lander import Lander
from onefold.spark_sink.threads import Threads
from tests.support.scheduler import Scheduler
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
    with pytest.raises(RuntimeError, match="the writer has ended"):
        lander.hand_over(lambda: seen.append("late"))


def test_whoever_hands_over_while_it_closes_never_waits_for_ever() -> None:
    """Whether it is landed is a matter of chance; as where Spark does not end a query in time, and it is closed all the same."""
    outcomes = set()
    for seed in range(60):
        with Scheduler(seed) as scheduler:
            lander = Lander("test", scheduler)

            def hand_over(lander: Lander = lander) -> None:
                seen: list[str] = []
                try:
                    lander.hand_over(lambda: seen.append("landed"))
                    lander.finish()
                except RuntimeError as error:
                    seen.append(str(error))
                outcomes.add(tuple(seen))

            scheduler.start("reading", hand_over)
            scheduler.start("stopping", lander.close)
            scheduler.run()
    late = "the writer has ended"
    assert outcomes == {("landed",), ("landed", late), (late,)}


def test_whoever_found_it_free_and_hands_over_when_it_has_ended_does_not_wait() -> None:
    """Between the two another thread may have closed it."""

    class ClosedBetween(Lander):
        def finish(self) -> None:
            super().finish()
            self.close()

    answered: list[str] = []

    def hand_over() -> None:
        lander = ClosedBetween("test", Threads())
        lander.hand_over(lambda: answered.append("landed"))
        try:
            lander.finish()
        except RuntimeError as error:
            answered.append(str(error))

    late = threading.Thread(target=hand_over, daemon=True)
    late.start()
    late.join(20)
    assert answered == ["the writer has ended"]
