"""How a pipeline is configured, as its page says it: without a secret."""

import os
from pathlib import Path

import pytest

from onefold.config.settings import load
from onefold.dashboard import configuration
from onefold.dashboard.configuration import Line
from tests.support.floor import Floor
from tests.support.site import LivePage, Site


def declared(name: str) -> dict[str, str]:
    return {line.name: line.value for line in configuration.declared(name, load())}


def test_what_a_pipeline_declares() -> None:
    """What it leaves out is left out here too."""
    found = declared("runner")
    assert found["topology"] == "onefold.processor.apps.runner:TOPOLOGY"
    assert found["row of runner.stats"] == "run_id, user_id"
    assert found["after a dead letter"] == "pass the later events of its key"
    assert "runner.stats" in found["tables"]
    assert found["replicas of each task"] == "1"
    assert not {"tick", "view", "decision log is kept"} & found.keys()
    assert found["key of runner.updates"].startswith("onefold.processor.apps.runner.")


def test_replicas_say_how_long_their_decisions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_REPLICAS", "2")
    assert declared("runner")["decision log is kept"] == "600 s"


def test_settings_that_somebody_made_are_shown_without_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ONEFOLD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://ann:hunter2@127.0.0.1:1/shop")
    monkeypatch.setenv("ONEFOLD_SCHEMA_REGISTRY_URL", "http://ann:hunter2@registry.example")
    monkeypatch.setenv("ONEFOLD_STALL_S", "30")
    found = {line.name: line for line in configuration.changed(load())}
    assert found["ONEFOLD_STALL_S"] == Line("ONEFOLD_STALL_S", "30.0", "environment")
    assert found["ONEFOLD_POSTGRES_DSN"].value == "postgresql://ann@127.0.0.1:1/shop"
    assert found["ONEFOLD_SCHEMA_REGISTRY_URL"].value == "http://ann:***@registry.example"
    assert "hunter2" not in repr(found)
    assert "ONEFOLD_PARTITIONS" not in found


def test_it_is_on_the_page_of_the_pipeline(page: LivePage, site: Site, floor: Floor, tmp_path: Path) -> None:
    page.open("/pipelines/runner")
    page.soon(".declared", "Declaration and changed settings")
    page.ask("document.querySelector('#configuration summary').click()")
    assert "onefold.processor.apps.runner:TOPOLOGY" in page.text("#configuration")
    assert "ONEFOLD_BOOTSTRAP_SERVERS" in page.text("#configuration")
    assert page.barriers() == []
