"""What the containers are given, as docker compose renders its file: a store of objects in S3, and its key."""

import json
from typing import Any

import pytest

from tests.support.docker import compose

SETTINGS = {
    "ONEFOLD_OBJECTS": "s3://bucket/prefix",
    "ONEFOLD_OBJECTS_ENDPOINT": "https://s3.example.com",
    "AWS_ACCESS_KEY_ID": "a-key",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_SESSION_TOKEN": "a-token",
    "AWS_REGION": "eu-central-2",
    "AWS_DEFAULT_REGION": "eu-central-1",
}
#: Who reads or writes objects. `verify`, `sweep` and the other commands run in the worker.
KEEPERS = {"worker", "dashboard", "judge", "auditor"}


#: A key that may only read, and who gets it.
READING = {
    "READER_AWS_ACCESS_KEY_ID": "r-key",
    "READER_AWS_SECRET_ACCESS_KEY": "r-secret",
    "READER_AWS_SESSION_TOKEN": "",
}
READERS = {"dashboard", "judge", "auditor"}
FOLDER = "file:///var/lib/onefold/objects"


def rendered() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        compose("--profile", "judge", "--profile", "audit", "config", "--format", "json", timeout=60)
    )
    return found


def given(service: dict[str, Any]) -> dict[str, str]:
    """Of the settings above, those that have a value in it."""
    return {name: value for name, value in service.get("environment", {}).items() if name in SETTINGS and value}


@pytest.mark.docker
def test_a_store_in_s3_is_passed_to_who_keeps_objects_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SETTINGS, "OBJECTS_INTERNAL": "false"}.items():
        monkeypatch.setenv(name, value)
    found = rendered()

    assert {name: given(service) for name, service in found["services"].items() if given(service)} == dict.fromkeys(
        KEEPERS, SETTINGS
    )
    reaching = {name for name, service in found["services"].items() if "objects" in service["networks"]}
    assert reaching == KEEPERS
    assert not found["networks"]["objects"].get("internal", False)
    assert found["networks"]["stack"]["internal"]


@pytest.mark.docker
def test_without_one_objects_are_in_a_volume_and_nothing_leaves_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SETTINGS, "OBJECTS_INTERNAL"):
        monkeypatch.delenv(name, raising=False)
    found = rendered()

    assert {name: given(service) for name, service in found["services"].items() if given(service)} == {
        "dashboard": {"ONEFOLD_OBJECTS": FOLDER}
    }
    for name in KEEPERS:
        mounted = {volume["source"]: volume for volume in found["services"][name]["volumes"]}
        assert mounted["objects"]["target"] == "/var/lib/onefold"
        assert mounted["objects"].get("read_only", False) == (name in READERS)
    assert found["networks"]["objects"]["internal"]


@pytest.mark.docker
def test_who_only_reads_objects_gets_a_key_that_may_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SETTINGS, **READING}.items():
        monkeypatch.setenv(name, value)
    found = rendered()["services"]
    for name in READERS:
        assert {key: found[name]["environment"][key.removeprefix("READER_")] for key in READING} == READING
    assert given(found["worker"]) == SETTINGS


@pytest.mark.docker
def test_the_page_is_published_on_this_machine_alone_and_answers_under_its_own_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every port that is published is."""
    monkeypatch.setenv("ONEFOLD_DASHBOARD_HOSTS", "board.example")
    services = rendered()["services"]
    published = [port["host_ip"] for service in services.values() for port in service.get("ports", [])]
    assert (set(published), len(published)) == ({"127.0.0.1"}, 3)
    assert services["dashboard"]["environment"]["ONEFOLD_DASHBOARD_HOSTS"] == "dashboard,board.example"


@pytest.mark.docker
def test_auditors_are_started_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each pipeline that can be audited, or of those that are named; and nobody else is told."""
    monkeypatch.delenv("ONEFOLD_AUDITED", raising=False)
    auditor = rendered()["services"]["auditor"]
    assert (auditor["profiles"], auditor["environment"]["ONEFOLD_AUDITED"]) == (["audit"], "all")
    assert auditor["healthcheck"]["test"][-3:] == ["onefold.operate.healthy", "/tmp/status.json", "9464"]
    monkeypatch.setenv("ONEFOLD_AUDITED", "runner")
    told = {
        name: service.get("environment", {}).get("ONEFOLD_AUDITED") for name, service in rendered()["services"].items()
    }
    assert {name: value for name, value in told.items() if value} == {"auditor": "runner"}


@pytest.mark.docker
def test_who_answers_for_itself_is_asked_there_whether_it_gets_on() -> None:
    """The dashboard answers for all the others, and is well where one of them is not."""
    asked = {
        name: service["healthcheck"]["test"][-1] == service["environment"]["ONEFOLD_METRICS_PORT"]
        for name, service in rendered()["services"].items()
        if "onefold.operate.healthy" in service.get("healthcheck", {}).get("test", ())
    }
    assert asked == {"processor": True, "worker": True, "spark_sink": True, "auditor": True, "dashboard": False}


@pytest.mark.docker
def test_what_was_proved_is_kept_where_judges_alone_may_write() -> None:
    """Else each verdict would read the whole log again, and be unknown where retention has removed its beginning."""
    mounted = {
        (name, bool(volume.get("read_only")))
        for name, service in rendered()["services"].items()
        for volume in service.get("volumes", [])
        if volume["source"] == "judge" and volume["target"] == service["environment"]["ONEFOLD_JUDGE_HOME"]
    }
    assert mounted == {("judge", False), ("auditor", False)}
