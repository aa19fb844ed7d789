"""One fault, one exit code: of the processor and of the sink."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onefold import pipelines
from onefold.exit_codes import USAGE
from onefold.pipelines import Pipeline
from onefold.processor import service as processor
from onefold.spark_sink import service as sink


def process(pipeline: Pipeline) -> int:
    return processor.run(pipeline.name, client={"bootstrap.servers": "127.0.0.1:9"}, instance="one")


def land(pipeline: Pipeline) -> int:
    given: dict[str, Any] = {
        "bootstrap_servers": "127.0.0.1:9",
        "kafka_options": {},
        "postgres_dsn": "",
        "writer": "w",
        "jars": [],
        "java_home": "",
        "checkpoint_root": pipeline.contracts,
        "status_file": None,
        "step": lambda name: None,
    }
    return sink.run([pipeline], **given)


@pytest.mark.parametrize("content", [None, "{", '{"topics": ["runner.updates"], "type": "nothing"}'], ids=str)
@pytest.mark.parametrize("run", [process, land])
def test_a_contract_that_is_missing_or_none_is_a_fault_of_the_configuration(
    run: Callable[[Pipeline], int], content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but an edit can help: 2, and not the 3 by which a person is asked about the data."""
    if content is not None:
        (tmp_path / "runner.Update.avsc").write_text(content, encoding="utf-8")
    broken = replace(pipelines.find()["runner"], contracts=tmp_path)
    monkeypatch.setattr(pipelines, "find", lambda: {"runner": broken})
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert run(broken) == USAGE


def test_a_pipeline_that_is_not_there_is_a_fault_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `onefold sink nothing` says before it starts."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert processor.run("nothing", client={}, instance="one") == USAGE


def test_an_address_that_is_none_is_a_fault_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a schema registry: whoever gave it can mend it."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert processor.run("runner", client={}, instance="one", schema_registry_url="nowhere") == USAGE
