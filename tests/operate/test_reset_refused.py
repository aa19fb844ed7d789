"""What a reset must not even begin, found without a server."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.cli.commands.reset import jobs_of
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.jobs.context import Context
from onefold.jobs.protocols import Objects
from onefold.jobs.starting_over import StartingOver
from onefold.operate import pausing, pipelines
from onefold.operate.reset.reset import Reset
from onefold.pipelines import Pipeline
from onefold.stack.child import birth
from tests.support.coded import raises

NOBODY = Settings(bootstrap_servers="127.0.0.1:9", postgres_dsn="postgresql://127.0.0.1:9/none")


def context(folder: Path) -> Context:
    def no_objects() -> Objects:
        raise AssertionError("not asked for")

    return Context("orders", "", {}, no_objects, folder)


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """With one queue, whose effect does not say how it is started over."""
    (tmp_path / "reset_mails.py").write_text(
        "from onefold.effects import OnceEach\nMAILS = OnceEach()\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = {"orders.mails": "reset_mails:MAILS"}
    return Pipeline("orders", tmp_path / "pyproject.toml", "a:B", None, tmp_path, tmp_path, jobs=jobs)


def test_jobs_that_do_not_say_what_they_report_are_not_started_over(orders: Pipeline, tmp_path: Path) -> None:
    """The reports of before would lie in an input that stays."""
    with raises(UserError, Code.JOBS_WRONG) as caught:
        StartingOver(orders, context(tmp_path))
    assert (caught.value.exit_code, "Add reports = []" in caught.value.hint) == (REFUSED, True)


def test_an_effect_that_does_not_say_how_is_not_started_over(orders: Pipeline, tmp_path: Path) -> None:
    """All mails would be sent once more."""
    with raises(UserError, Code.JOBS_WRONG, "orders.mails", "reset_mails:MAILS") as caught:
        StartingOver(replace(orders, reports=()), context(tmp_path))
    assert caught.value.exit_code == REFUSED


def test_rows_do_not_stay_where_workers_read_them() -> None:
    """They would be taken for those of the new records."""
    with raises(UserError, Code.ARGUMENT_WRONG) as caught:
        Reset("sheets", NOBODY, keep_tables=True, jobs=jobs_of("sheets", NOBODY))
    assert caught.value.exit_code == REFUSED


@pytest.mark.parametrize("topic", ["shop.orders", "sheets.imports"])
def test_a_report_that_is_no_input_of_others_is_not_deleted(topic: str) -> None:
    jobs = jobs_of("sheets", NOBODY)
    assert isinstance(jobs, StartingOver)
    jobs.reports = [topic]
    with raises(UserError, Code.JOBS_WRONG, str(topic)) as caught:
        Reset("sheets", NOBODY, jobs=jobs)
    assert caught.value.exit_code == REFUSED


@pytest.mark.parametrize(
    ("topic", "inputs"), [("runner.stats", False), ("runner.updates.dead", False), ("runner.updates", True)]
)
def test_a_topic_of_another_pipeline_is_not_deleted(topic: str, inputs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "topics_of_others", lambda name: {topic: "shop"})
    with raises(UserError, Code.SHARED_DATA, str(topic)) as caught:
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
    ("service", "code"),
    [
        ("processor-runner-1", Code.STILL_RUNNING),
        ("sink-1", Code.STILL_RUNNING),  # which lands every pipeline
        ("sink-2", Code.STILL_RUNNING),
        ("worker-runner-1", Code.STILL_RUNNING),
        ("worker-sheets-1", Code.POSTGRES_SILENT),
        ("processor-bank-1", Code.POSTGRES_SILENT),  # that nobody is there is found next
    ],
)
def test_on_the_embedded_stack_the_sink_of_all_pipelines_is_in_the_way(
    service: str, code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/reset.md says. Processors of another pipeline are not."""
    monkeypatch.setattr(pausing, "_LOOK_S", 0.1)
    me = {"supervisor_pid": os.getpid(), "create_time": birth(os.getpid())}
    stack_state.write(stack_state.path(tmp_path), {"version": stack_state.VERSION, **me, "services": {service: {}}})
    with raises(UserError, code):
        Reset("runner", NOBODY.model_copy(update={"home": tmp_path})).refuse_while_running()
