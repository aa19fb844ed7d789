"""What a reset must not even begin, found without a server."""

import os
from pathlib import Path

import pytest

from onefold.exit_codes import REFUSED
from onefold.operate import pipelines, state
from onefold.operate.errors import UserError
from onefold.operate.reset import Reset
from onefold.operate.settings import Settings
from onefold.stack.child import birth

NOBODY = Settings(bootstrap_servers="127.0.0.1:9", postgres_dsn="postgresql://127.0.0.1:9/none")


def test_a_pipeline_with_jobs_is_not_started_over() -> None:
    """What its workers have done would pass for that of the new records."""
    with pytest.raises(UserError, match="sheets has jobs") as caught:
        Reset("sheets", NOBODY)
    assert caught.value.exit_code == REFUSED


@pytest.mark.parametrize(
    ("topic", "inputs"), [("runner.stats", False), ("runner.updates.dead", False), ("runner.updates", True)]
)
def test_a_topic_of_another_pipeline_is_not_deleted(topic: str, inputs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "topics_of_others", lambda name: {topic: "shop"})
    with pytest.raises(UserError, match=f"{topic} is a topic of shop too") as caught:
        Reset("runner", NOBODY, inputs=inputs)
    assert caught.value.exit_code == REFUSED


def test_an_input_that_stays_may_be_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "topics_of_others", lambda name: {"runner.updates": "shop"})
    assert Reset("runner", NOBODY).name == "runner"


def test_the_topics_of_others_are_those_that_they_name() -> None:
    found = pipelines.topics_of_others("runner")
    assert found["bank.entries"] == found["bank.transfers.dead"] == "bank"
    assert not any(topic.startswith("runner.") for topic in found)


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("processor-runner-1", "runner runs: processor-runner-1"),
        ("sink-1", "runner runs: sink-1"),  # which lands every pipeline
        ("sink-1-standby", "runner runs: sink-1-standby"),
        ("processor-bank-1", "PostgreSQL did not do it"),  # that nobody is there is found next
    ],
)
def test_on_the_embedded_stack_the_sink_of_all_pipelines_is_in_the_way(service: str, said: str, tmp_path: Path) -> None:
    """As docs/operating.md says. Processors of another pipeline are not."""
    me = {"supervisor_pid": os.getpid(), "create_time": birth(os.getpid())}
    state.write(state.path(tmp_path), {"version": state.VERSION, **me, "services": {service: {}}})
    with pytest.raises(UserError, match=said):
        Reset("runner", NOBODY.model_copy(update={"home": tmp_path})).refuse_while_running()
