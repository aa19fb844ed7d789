"""`produce TOPIC --count N` makes N events of that topic: for every domain, and for one whose generator mixes two topics."""

import random
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from onefold.cli.commands.produce import _Generated
from onefold.operate import pipelines
from onefold.operate.errors import UserError
from onefold.processor import service
from onefold.proof.workloads.shaping import Input

INPUTS = [(name, topic) for name in pipelines.domains() for topic in service.topology_of(name).inputs]
TWO = SimpleNamespace(name="two", inputs=("two.often", "two.seldom"))


def generate(seed: int, count: int) -> Iterator[Input]:
    """Nine of ten for one topic, and a tenth for the other; another count makes other events from the first one on."""
    rng = random.Random(f"{seed} {count}")
    for number in range(count):
        yield Input(TWO.inputs[rng.random() < 0.1], b"%d" % number, b"%d" % rng.randrange(10**9))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A workload with two topics."""
    module = ModuleType("onefold.proof.workloads.two")
    module.generate = generate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("count", [1, 2, 400, 9_001])
@pytest.mark.parametrize(("domain", "topic"), INPUTS)
def test_every_topic_gets_as_many_events_as_were_asked_for(domain: str, topic: str, count: int) -> None:
    made = list(_Generated(service.topology_of(domain), topic, count, 7))
    assert len(made) == count
    assert {event[0] for event in made} == {topic}


@pytest.mark.parametrize("count", [1, 2, 400, 9_001])
@pytest.mark.parametrize("topic", TWO.inputs)
def test_a_topic_that_shares_its_generator_gets_as_many_too(two: ModuleType, topic: str, count: int) -> None:
    made = list(_Generated(TWO, topic, count, 7))
    assert len(made) == count
    assert {event[0] for event in made} == {topic}
    assert list(_Generated(TWO, topic, count, 7)) == made, "the same seed made other events"


def test_a_topic_that_no_generator_knows_is_one_sentence(two: ModuleType) -> None:
    topology = SimpleNamespace(name="two", inputs=(*TWO.inputs, "two.never"))
    with pytest.raises(UserError, match=r"makes too few events for two\.never"):
        list(_Generated(topology, "two.never", 3, 7))


@pytest.mark.parametrize("module", [None, ModuleType("onefold.proof.workloads.two")])
def test_a_domain_without_a_generator_is_one_sentence(
    module: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(UserError, match="no generator of events for two") as caught:
        _Generated(TWO, "two.often", 3, 7)
    assert caught.value.exit_code == 2
