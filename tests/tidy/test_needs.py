"""Tests say what they need, and one that does not say it cannot get it."""

import os
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest

from onefold.cli.main import run
from tests.support import needs
from tests.support.rooms import ROOT


def test_what_is_needed_is_found_by_the_fixtures() -> None:
    """Down to those that are listed: a database is no reason to say `broker`."""
    made = {
        "database": ["postgres_dsn"],
        "postgres_dsn": ["postgres_server"],
        "client": ["bootstrap_servers"],
        "floor": ["database", "tmp_path"],
        "secured": ["infrastructure"],
    }
    fixtures = {name: [SimpleNamespace(argnames=names)] for name, names in made.items()}

    def found(*names: str) -> set[str]:
        return set(needs._needs(names, fixtures))

    assert found("tmp_path") == set()
    assert found("floor") == {"postgres"}
    assert found("client", "floor") == {"broker", "postgres"}
    assert found("secured") == {"broker", "postgres"}


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["java", "-cp", "x", "kafka.Kafka", "server.properties"], {"broker"}),
        (["/somewhere/bin/postgres", "-D", "data"], {"postgres"}),
        (["/somewhere/bin/postgres", "--version"], set()),
        ([sys.executable, "-m", "onefold.cli.main", "up"], {"broker", "postgres", "spark"}),
        ([sys.executable, "-m", "onefold.cli.main", "status"], set()),
        (["docker", "compose", "build"], {"docker"}),
        ("a line for a shell", set()),
    ],
)
def test_what_a_program_needs_is_seen(command: object, wanted: set[str]) -> None:
    assert needs.started(command) == wanted


def test_a_test_without_a_marker_cannot_start_a_server() -> None:
    """As this one, which has none."""
    with pytest.raises(AssertionError, match="starts what it is not marked for: broker"):
        subprocess.run(["true", "kafka.Kafka"], check=True)


@pytest.mark.broker
def test_a_test_with_a_marker_can_start_it_and_what_it_comes_after() -> None:
    subprocess.run(["true", "kafka.Kafka"], check=True)
    subprocess.run(["true", "postgres"], check=True)


@pytest.mark.postgres
def test_a_test_of_the_database_starts_no_broker() -> None:
    subprocess.run(["true", "postgres"], check=True)
    with pytest.raises(AssertionError, match="starts what it is not marked for: broker"):
        subprocess.run(["true", "kafka.Kafka"], check=True)


def test_every_need_is_a_marker_and_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = {line.partition(":")[0] for line in project["tool"]["pytest"]["ini_options"]["markers"]}
    assert markers == {*needs.NEEDS, *needs.LONG, needs.ALONE}
    assert {need for found in needs.FIXTURES.values() for need in found} == set(needs.NEEDS)
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert all(f"`-m {name}`" in page for name in (*needs.NEEDS, "matrix"))


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--fast"], ["--fast"]),
        (["-m", "broker"], ["-m", "broker"]),
        (["--fast", "-k", "fold", "-x"], ["--fast", "-k", "fold", "-x"]),
        (["tests/core", "-q"], ["tests/core", "-q"]),
    ],
)
def test_the_verb_hands_on_what_it_is_given(
    words: list[str], given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: asked.append(arguments))
    monkeypatch.setattr(os, "chdir", lambda folder: None)
    assert run(["test", *words]) == 0
    assert asked == [[sys.executable, "-m", "pytest", *given]]
