"""Which process decides which tasks: who decides more than another one gives a task away, and that is all it does."""

from typing import Any

import pytest

from onefold.processor.core.decision import Proposal
from onefold.processor.core.decision_log import Note
from onefold.processor.io.proposals import AvroProposals
from onefold.processor.runtime.courtesy import Courtesy
from onefold.processor.runtime.sharing import GIVES_EVERY_S, HEARD_S, HELD_S, LEVEL, LEVEL_FOR_S, Sharing
from tests.support.replicas import RUNNER, Replicas, elastic, outcome, update


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(name: str, version: Any = 7, task: int = 0) -> Note:
    """How a replica is, as it says it."""
    return Note(task, name, {"replica": {"version": version}})


class Seen:
    """What process a sees: some tasks that it decides, and others that b does, for long enough."""

    def __init__(self, ours: int, theirs: int = 0) -> None:
        self.clock = Clock()
        self.sharing = Sharing("a", self.clock)
        self.tasks = {task: "a" if task < ours else "b" for task in range(ours + theirs)}
        self.decided()
        self.clock.now += HELD_S
        self.decided()

    def decided(self) -> None:
        for task, name in self.tasks.items():
            self.sharing.decided(task, name)

    def level(self, version: Any = 7) -> None:
        """Process b has said for long enough that it is at that version, of each task."""
        for _ in range(4):
            self.clock.now += LEVEL_FOR_S / 3
            self.decided()
            for task in self.tasks:
                self.sharing.hears(told("b", version, task), 7)

    def gives(self, task: int = 0) -> Any:
        found = self.sharing.gives(task, version=7)
        return None if found is None else found["left"]["to"]


@pytest.mark.parametrize(("ours", "theirs"), [(2, 0), (4, 0), (3, 1), (4, 2)])
def test_who_decides_two_more_gives_one_away(ours: int, theirs: int) -> None:
    """One, and another one when it has been seen what came of it."""
    seen = Seen(ours, theirs)
    seen.level()
    assert seen.gives(0) == "b"
    assert seen.gives(1) is None
    seen.clock.now += GIVES_EVERY_S
    seen.level()
    assert seen.gives(1) == "b"


@pytest.mark.parametrize(("ours", "theirs"), [(1, 0), (1, 1), (2, 1), (2, 2), (1, 3)])
def test_nothing_is_given_for_nothing(ours: int, theirs: int) -> None:
    """Where it would only be the other way round then."""
    seen = Seen(ours, theirs)
    seen.level()
    assert {seen.gives(task) for task in seen.tasks} == {None}


def test_nothing_is_given_to_who_may_be_dead_or_is_not_level() -> None:
    seen = Seen(2)
    assert seen.gives() is None, "nobody was heard"
    seen.sharing.hears(told("a"), 7)
    assert seen.gives() is None, "only itself"
    for version in (7 - LEVEL - 1, "7", None):
        seen.level(version=version)
        assert seen.gives() is None, "it is far behind, or does not say"
    seen.sharing.hears(Note(0, "b", {"replica": 1}), 7)
    assert seen.gives() is None
    seen.level()
    assert seen.gives() == "b"


def test_nothing_is_given_to_who_was_not_heard_for_a_while() -> None:
    seen = Seen(2)
    seen.level()
    seen.clock.now += HEARD_S
    seen.decided()
    assert seen.gives() is None
    seen.sharing.hears(told("b"), 7)
    assert seen.gives() is None, "it may have begun a moment ago, and restores its other tasks yet"
    seen.level()
    assert seen.gives() == "b"


def test_a_task_is_given_to_who_is_level_with_it() -> None:
    """Not with another one only, while it restores this one."""
    seen = Seen(2)
    for _ in range(4):
        seen.clock.now += LEVEL_FOR_S / 3
        seen.decided()
        seen.sharing.hears(told("b", task=1), 7)
    assert seen.gives(0) is None
    assert seen.gives(1) == "b"


def test_nothing_is_given_to_who_has_just_begun() -> None:
    seen = Seen(2)
    seen.sharing.hears(told("b"), 7)
    assert seen.gives() is None
    seen.clock.now += LEVEL_FOR_S / 2
    seen.sharing.hears(told("b"), 7)
    assert seen.gives() is None
    seen.clock.now += LEVEL_FOR_S / 2
    seen.decided()
    assert seen.gives() == "b"


def test_what_was_just_taken_over_is_kept_for_a_while() -> None:
    """From who has died: it may have been heard shortly before. Its tasks are not given back to it."""
    seen = Seen(2, 2)
    seen.level()
    seen.tasks = dict.fromkeys(seen.tasks, "a")
    seen.decided()
    assert seen.gives(2) is None
    assert HELD_S > HEARD_S


def test_tasks_that_stand_still_do_not_count() -> None:
    """They cost nobody anything."""
    seen = Seen(3)
    seen.level()
    seen.clock.now += HELD_S
    seen.sharing.decided(0, "a")
    seen.tasks = {0: "a"}
    seen.level()
    assert seen.gives(0) is None
    seen.sharing.decided(1, "a")
    assert seen.gives(0) == "b"


def test_only_who_is_named_hears_that_it_is_left_the_next() -> None:
    """And only the next: who is behind, or ahead, is left nothing."""
    note = Note(0, "a", {"left": {"version": 7, "to": "b"}})
    for name, version, is_left in (("b", 7, True), ("b", 8, False), ("b", 6, False), ("c", 7, False)):
        assert Sharing(name, Clock()).hears(note, version) is is_left


def test_courtesy_is_for_the_next_decision_alone() -> None:
    clock = Clock()
    courtesy = Courtesy(clock)
    assert not courtesy.waits()
    courtesy.leaves()
    assert courtesy.waits()
    courtesy.decided(ours=True)
    assert not courtesy.waits()
    courtesy.decided(ours=False)
    assert courtesy.waits()
    courtesy.is_left()
    assert not courtesy.waits()


def notes_and_proposals(world: Replicas) -> list[str]:
    """Who has proposed, and who has left it to another one, in order."""
    found = []
    for _, value in world.decision_log().read(0):
        record = AvroProposals().decode(value)
        if isinstance(record, Proposal):
            found.append(f"{record.proposer} proposes")
        elif record is not None and "left" in record.body:
            found.append(f"{record.proposer} leaves it to {record.body['left']['to']}")
    return found


def test_a_task_that_is_given_away_goes_on_without_a_pause() -> None:
    """Where another task of the process is decided by it too: it waits, and who is named does not."""
    world = Replicas(RUNNER)
    a, b = world.members.values()
    for number in (1, 2):
        world.driver.send("runner.updates", update(1, number))
        for _ in range(40):
            a.go_on()
    world.drain()
    assert a.replica is not None
    for _ in range(2):
        for task in (0, 1):
            a.replica._sharing.decided(task, "a")
        a.replica._sharing.hears(told("b", 10**6), 0)
        world.now += HELD_S / 2 + 0.01
    a.replica._sharing.hears(told("b", 10**6), 0)
    before = notes_and_proposals(world)
    assert not any(one.startswith("b") for one in before)

    world.driver.send("runner.updates", update(1, 3))
    a.go_on()
    a.go_on()
    b.go_on()
    assert notes_and_proposals(world)[len(before) :] == ["a leaves it to b", "b proposes"]
    for number in (4, 5):
        world.drain()
        world.driver.send("runner.updates", update(1, number))
        a.go_on()
        b.go_on()
    world.drain()
    assert notes_and_proposals(world)[len(before) + 2 :] == ["b proposes"] * 2
    assert outcome(world.driver) == elastic([update(1, number) for number in range(1, 6)])
