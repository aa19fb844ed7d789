"""Who is started first: those for which something waits, and not for ever."""

from types import SimpleNamespace

import pytest

from onefold.spark_sink.precedence import PATIENCE_S, Precedence, Supervised
from tests.support.clock import Clock

pytestmark = pytest.mark.promise("precedence-at-start")


def named(*names: str) -> list[Supervised]:
    """Supervisors of queries that have landed nothing yet."""
    return [SimpleNamespace(query=SimpleNamespace(name=name, landed=0)) for name in names]


def due(precedence: Precedence, supervisors: list[Supervised]) -> list[str]:
    return [one.query.name for one in precedence.due(supervisors)]


def test_those_for_which_something_waits_are_first_and_the_others_come_when_these_have_landed() -> None:
    idle, one, two = all_of_them = named("idle", "one", "two")
    precedence = Precedence(Clock())
    precedence.take_first(frozenset(("one", "two")))

    assert due(precedence, all_of_them) == ["one", "two"]
    one.query.landed = 5  # type: ignore[misc]  # a stand-in, whose figures may be set
    assert due(precedence, all_of_them) == ["one", "two"]
    two.query.landed = 1  # type: ignore[misc]  # as above
    assert due(precedence, all_of_them) == ["idle", "one", "two"]
    one.query.landed = 0  # type: ignore[misc]  # it was started again
    assert due(precedence, all_of_them) == ["idle", "one", "two"], "who has had a turn keeps it"
    assert idle.query.landed == 0


def test_nobody_waits_for_one_that_does_not_get_on() -> None:
    supervisors, clock = named("idle", "stuck"), Clock()
    precedence = Precedence(clock)
    precedence.take_first(frozenset(("stuck",)))

    assert due(precedence, supervisors) == ["stuck"]
    clock.now += PATIENCE_S
    assert due(precedence, supervisors) == ["idle", "stuck"]


def test_nobody_waits_for_one_that_is_left_out() -> None:
    precedence = Precedence(Clock())
    precedence.take_first(frozenset(("broken",)))

    assert due(precedence, named("idle")) == ["idle"]


def test_when_nothing_is_known_everybody_has_a_turn_and_keeps_it() -> None:
    supervisors, precedence = named("idle", "one"), Precedence(Clock())

    assert due(precedence, supervisors) == ["idle", "one"]
    precedence.take_first(frozenset(("one",)))
    assert due(precedence, supervisors) == ["idle", "one"], "an answer that comes late takes no turn away"
