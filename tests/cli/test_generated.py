"""`produce TOPIC --count N` makes N events of that topic: for every domain, and for one whose generator mixes two topics."""

import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from onefold.cli.commands.produce import _Generated
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.operate import pipelines
from onefold.processor import loading
from tests.support.coded import raises

#: Reports of what workers have made: nobody else has anything to report.
BY_WORKERS = {"sheets.finished"}
#: Nobody but the pipeline itself writes to what it feeds.
INPUTS = [
    (name, topic)
    for name in pipelines.domains()
    for topology in (loading.topology_of(name),)
    for topic in topology.inputs
    if topic not in topology.fed and topic not in BY_WORKERS
]
TWO = SimpleNamespace(name="two", inputs=("two.often", "two.seldom"))


GENERATOR = '''
import random
from onefold.workloads.shaping import Input

def generate(seed, count):
    """Nine of ten for one topic, and a tenth for the other; another count makes other events from the first one on."""
    rng = random.Random(f"{seed} {count}")
    for number in range(count):
        topic = ("two.often", "two.seldom")[rng.random() < 0.1]
        yield Input(topic, b"%d" % number, b"%d" % rng.randrange(10**9))
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose project has a pipeline with two topics, and the workload that a test writes."""
    (tmp_path / "avro").mkdir()
    (tmp_path / "sql").mkdir()
    module = f"workload_{uuid.uuid4().hex}"  # Python keeps what it has imported
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.onefold.pipelines.two]\ntopology = "nowhere:TOPOLOGY"\nworkload = "{module}"\n', encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / f"{module}.py"


@pytest.fixture
def two(project: Path) -> Path:
    """The generator of both."""
    project.write_text(GENERATOR, encoding="utf-8")
    return project


# More than what the rarest topic has in a generator's first thousands.
@pytest.mark.slow  # 4 s
@pytest.mark.parametrize("count", [1, 2, 400, 1_001])
@pytest.mark.parametrize(("domain", "topic"), INPUTS)
def test_every_topic_gets_as_many_events_as_were_asked_for(domain: str, topic: str, count: int) -> None:
    made = list(_Generated(loading.topology_of(domain), topic, count, 7))
    assert len(made) == count
    assert {event[0] for event in made} == {topic}


@pytest.mark.slow  # 3 s
@pytest.mark.parametrize("count", [1, 2, 400, 9_001])
@pytest.mark.parametrize("topic", TWO.inputs)
def test_a_topic_that_shares_its_generator_gets_as_many_too(two: Path, topic: str, count: int) -> None:
    made = list(_Generated(TWO, topic, count, 7))
    assert len(made) == count
    assert {event[0] for event in made} == {topic}
    assert list(_Generated(TWO, topic, count, 7)) == made, "the same seed made other events"


def test_a_topic_that_no_generator_knows_is_one_sentence(two: Path) -> None:
    topology = SimpleNamespace(name="two", inputs=(*TWO.inputs, "two.never"))
    with raises(UserError, Code.NO_GENERATOR, "two.never"):
        list(_Generated(topology, "two.never", 3, 7))


@pytest.mark.parametrize("topic", BY_WORKERS)
def test_what_only_workers_write_is_not_generated(topic: str) -> None:
    with raises(UserError, Code.NO_GENERATOR):
        list(_Generated(loading.topology_of("sheets"), topic, 1, 7))


def test_a_domain_without_a_generator_is_one_sentence(project: Path) -> None:
    project.write_text("WORKLOAD = None", encoding="utf-8")
    with raises(UserError, Code.NO_GENERATOR) as caught:
        _Generated(TWO, "two.often", 3, 7)
    assert caught.value.exit_code == 2


def test_a_generator_that_does_not_load_is_one_sentence_with_its_line(project: Path) -> None:
    project.write_text("import random\n\nrandom.no_such_thing\n", encoding="utf-8")
    with raises(UserError, Code.PIPELINE_WRONG, f"{project.name}") as caught:
        _Generated(TWO, "two.often", 3, 7)
    assert caught.value.exit_code == 2
