"""When a replica leaves a decision to the others, and for how long."""

import pytest

from onefold.processor.runtime.courtesy import COURTESY_MAX_S, COURTESY_S, TIMES_AS_LONG, Courtesy
from onefold.processor.runtime.every import Every
from tests.support.clock import Clock


def waited_s(courtesy: Courtesy, clock: Clock) -> float:
    """How long it waits from now on, when nobody decides anything."""
    began = clock.now
    while courtesy.waits():
        clock.now += max(courtesy.left_s, 1e-6)
    return clock.now - began


def lose(courtesy: Courtesy, clock: Clock, took_s: float) -> None:
    """Somebody else decides what this one had to propose for so long."""
    courtesy.waits()
    clock.now += took_s
    courtesy.decided(ours=False)


def test_who_won_goes_on_at_once_and_who_lost_waits() -> None:
    clock = Clock()
    courtesy = Courtesy(clock)
    assert waited_s(courtesy, clock) == 0
    courtesy.decided(ours=True)
    assert waited_s(courtesy, clock) == 0
    courtesy.decided(ours=False)
    assert waited_s(courtesy, clock) == pytest.approx(COURTESY_S, abs=1e-3)
    assert not courtesy.waits()


def test_the_time_begins_when_there_is_something_to_propose() -> None:
    clock = Clock()
    courtesy = Courtesy(clock)
    courtesy.decided(ours=False)
    clock.now += 10
    assert courtesy.waits()


@pytest.mark.parametrize(
    ("took_s", "then_s"), [(0.001, COURTESY_S), (0.1, TIMES_AS_LONG * 0.1), (60.0, COURTESY_MAX_S)]
)
def test_it_waits_as_long_as_decisions_take_within_bounds(took_s: float, then_s: float) -> None:
    clock = Clock()
    courtesy = Courtesy(clock)
    lose(courtesy, clock, took_s)
    assert waited_s(courtesy, clock) == pytest.approx(then_s, abs=1e-3)
    courtesy.decided(ours=True)
    lose(courtesy, clock, 0.001)
    assert waited_s(courtesy, clock) == pytest.approx(COURTESY_S, abs=1e-3)


def test_after_a_backlog_it_waits_as_before() -> None:
    """With nothing to propose there was none, however long the last decision took."""
    clock = Clock()
    courtesy = Courtesy(clock)
    lose(courtesy, clock, 60.0)
    courtesy.decided(ours=False)
    assert waited_s(courtesy, clock) == pytest.approx(COURTESY_S, abs=1e-3)


def test_every_is_due_at_once_and_then_in_its_time() -> None:
    clock = Clock()
    every = Every(2.0, clock)
    assert [every.is_due(), every.is_due()] == [True, False]
    clock.now += 2.0
    assert [every.is_due(), every.is_due()] == [True, False]
