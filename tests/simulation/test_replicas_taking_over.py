"""Replicas that take an elastic task over at the same time."""

import pytest

from tests.support.replicas import RUNNER, Replicas, update
from tests.support.tasks import log_decider


def test_who_is_not_the_first_to_take_the_task_over_goes_on_with_what_came_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that are started at once: the other one has taken it, and folded and published what was sent meanwhile."""
    world = Replicas(RUNNER)
    a, b = world.members["a"], world.members["b"]
    a.replica = world.replica(a)
    changelog = log_decider(a.replica)._changelog
    opens = changelog.open

    def later() -> None:
        for number in range(1, 4):
            world.driver.send("runner.updates", update(1, number))
        for _ in range(20):
            b.go_on()
        for _ in range(5):
            b.publish()
        assert len(world.driver.read("runner.messages")) == 3
        opens()

    monkeypatch.setattr(changelog, "open", later)
    a.replica.open()
    assert a.replica.progress.offsets_next == {"runner.updates": 3}
