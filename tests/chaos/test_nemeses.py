"""The table of nemeses: every one heals what it breaks, whatever that was."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from onefold.chaos.nemeses import Nemesis, Stack
from onefold.chaos.nemeses.table import BOUNDS_OF_REPLICAS, PROCESSOR, SERVICES, nemeses
from onefold.chaos.progress import StageTimes
from onefold.chaos.run import as_it_hits, bounds_of, inflict
from onefold.config.settings import Settings
from onefold.processor.io.static_member import ONE_BROKER_MS

NEMESES = nemeses()
# What undoes what. A kill and a restart heal by themselves; deleted scratch files need no healing.
UNDONE_BY = {"pause": "resume", "cut": "mend", "leave_dead": "revive"}


class Diary:
    """A stack that writes down what is done to it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, act: str) -> Callable[..., None]:
        return lambda *arguments: self.done.append((act, arguments))


@pytest.mark.parametrize("nemesis", NEMESES.values(), ids=NEMESES)
def test_everything_is_healed(nemesis: Nemesis) -> None:
    """And whoever was scaled up is scaled down to one again."""
    diary = Diary()
    stack = cast("Stack", diary)
    nemesis.prepare(stack)
    nemesis.inject(stack)
    broken = {(UNDONE_BY[act], arguments) for act, arguments in diary.done if act in UNDONE_BY}
    before = len(diary.done)
    nemesis.heal(stack)

    assert broken <= set(diary.done[before:])
    assert {arguments[1] for act, arguments in diary.done[-1:] if act == "scale"} <= {1}
    assert all(arguments[0] in SERVICES for _, arguments in diary.done)
    assert nemesis.held == (nemesis.name.startswith(("pause", "cut")))


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_suffers_every_common_fault(service: str) -> None:
    for fault in ("kill", "restart", "pause", "cut"):
        assert f"{fault}-{service}" in NEMESES


def test_a_stall_is_counted_by_partition() -> None:
    """The longest gap of any of them, from the moment that counts; one that never progressed was stalled all the time."""
    stage = StageTimes()
    for now, first, second in ((0, 1, 1), (1, 2, 2), (4, 3, 2), (5, 4, 3), (6, 5, 4)):
        stage.note({("topic", 0): first, ("topic", 1): second}, float(now))

    assert stage.longest_stall(0, 6) == 4  # the second one, from 1 to 5
    assert stage.longest_stall(4.5, 6) == 1
    assert stage.progressing(1, now=6.5)
    stage.note({("topic", 2): 7}, 6.0)
    assert stage.longest_stall(4.5, 6) == 1.5
    assert not stage.progressing(1, now=6.5)


def test_a_partition_that_is_at_its_end_does_not_stall() -> None:
    """Of outputs that are rare: there is nothing to do, until there is."""
    stage = StageTimes()
    for now, offset, end in ((0, 7, 7), (1, 7, 7), (2, 7, 7), (3, 7, 8), (4, 7, 8), (5, 8, 8)):
        stage.note({("topic", 0): offset}, float(now), {("topic", 0): end})

    assert stage.longest_stall(0, 5) == 3  # from 2, when it was last at its end, to 5


@pytest.mark.parametrize("patience", [1.0, 3.0])
def test_bounds_are_those_of_a_quiet_machine_unless_somebody_has_more_patience(patience: float) -> None:
    settings = Settings(chaos_patience=patience)
    assert bounds_of(NEMESES["kill-spark_sink"], settings) == {"processor": 5.0 * patience, "sink": 30.0 * patience}


class Crowd(Diary):
    """One with so many of each service."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def instances(self, service: str) -> int:
        """As many as it was given."""
        return self._number


class Scaled(Crowd):
    """One that has as many as it was last scaled to, of the processor."""

    def scale(self, service: str, instances: int) -> None:
        if service == PROCESSOR:
            self._number = instances


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("name", ["takeover", "two-processors", "scale-processor", "kill-processor"])
def test_there_are_as_many_processors_as_before_a_fault(name: str, before: int) -> None:
    """Else the next one would hit the only replica that is left."""
    stack = Scaled(before)
    inflict(cast("Stack", stack), replace(NEMESES[name], hold_s=0.0), lambda text: None)
    assert stack.instances(PROCESSOR) == before


HITS_ONE = ("kill-processor", "restart-processor", "pause-processor", "cut-processor", "takeover")


@pytest.mark.parametrize("nemesis", NEMESES.values(), ids=NEMESES)
def test_one_of_several_replicas_may_be_missing_at_no_time(nemesis: Nemesis) -> None:
    """They do not wait until it is healed, and the bound is shorter than what it takes to miss a member of a group."""
    hit = as_it_hits(cast("Stack", Crowd(2)), Settings(replicas=2), "bank", nemesis)
    if nemesis.name in HITS_ONE:
        assert (hit.processor_s, hit.sink_s, hit.held) == (*BOUNDS_OF_REPLICAS, False)
        assert (hit.inject, hit.heal, hit.prepare, hit.hold_s) == (
            nemesis.inject,
            nemesis.heal,
            nemesis.prepare,
            nemesis.hold_s,
        )
        assert 1000 * BOUNDS_OF_REPLICAS[0] < ONE_BROKER_MS
    else:
        assert hit is nemesis


@pytest.mark.parametrize(("replicas", "instances"), [(1, 2), (2, 1)])
def test_who_is_alone_is_waited_for(replicas: int, instances: int) -> None:
    """An elastic pipeline, and replicas of which only one runs."""
    nemesis = NEMESES[f"kill-{PROCESSOR}"]
    assert as_it_hits(cast("Stack", Crowd(instances)), Settings(replicas=replicas), "bank", nemesis) is nemesis
