"""A handler that changes the state it is given is found by whoever tests it."""

from dataclasses import replace
from typing import Any

import pytest

from onefold.processor.core.errors import Rejected
from onefold.processor.core.topology import Tick
from onefold.processor.core.values import Event
from onefold.processor.testing import TopologyDriver
from tests.support.replicas import RUNNER, update


def in_place(state: Any, event: Event) -> Any:
    if state is not None:
        state.sequence_id_last = event.value.sequence_id
    return RUNNER.handle(None, event)


def and_refuses(state: Any, event: Event) -> Any:
    in_place(state, event)
    if state is not None:
        raise Rejected("never")
    return RUNNER.handle(state, event)


@pytest.mark.parametrize("handle", [in_place, and_refuses])
def test_a_handler_that_changes_the_state_it_is_given_is_found(handle: Any) -> None:
    driver = TopologyDriver(replace(RUNNER, handle=handle))
    driver.send("runner.updates", update(1, 1))
    driver.run()
    driver.send("runner.updates", update(1, 2))
    with pytest.raises(
        AssertionError, match=r"changed the state that it was given, at runner\.updates/0/1: return a new one"
    ):
        driver.run()


def test_one_of_a_tick_is_found_as_well() -> None:
    def on_tick(key: str, state: Any, at_ms: int) -> Any:
        state.sequence_id_last = at_ms
        return state, ()

    driver = TopologyDriver(replace(RUNNER, tick=Tick(every_s=1, handle=on_tick)))
    driver.send("runner.updates", update(1, 1))
    driver.tick(5_000)
    with pytest.raises(AssertionError, match="at the tick of 5000, key 1"):
        driver.run()


def test_one_that_returns_a_new_state_is_left_alone() -> None:
    driver = TopologyDriver(RUNNER)
    for number in range(1, 5):
        driver.send("runner.updates", update(1, number))
    driver.run()
    assert len(driver.read("runner.messages")) == 4
