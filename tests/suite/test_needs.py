"""Tests say what they need, and one that does not say it cannot get it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from onefold.cli.main import run
from tests.support import needs
from tests.support.own_pytest import own_pytest
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
    assert {name.partition("(")[0] for name in markers} == {*needs.NEEDS, *needs.LENGTHS, needs.ALONE, "promise"}
    assert {need for found in needs.FIXTURES.values() for need in found} == set(needs.NEEDS)
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert all(f"`-m {name}`" in page for name in (*needs.NEEDS, "matrix"))


def asked(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What pytest is started with."""
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: started.append(arguments))
    monkeypatch.setattr(os, "chdir", lambda folder: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert run(["test", *words]) == 0
    assert started[0][:3] == [sys.executable, "-m", "pytest"]
    return started[0][3:]


SHARED = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], SHARED),
        (["--fast"], ["--fast", *SHARED]),
        (["--all", "-x"], ["--all", *SHARED, "-x"]),
        (["-m", "broker"], [*SHARED, "-m", "broker"]),
        (["tests/core", "-q"], [*SHARED, "tests/core", "-q"]),
        (["tests/core/test_fold.py"], ["tests/core/test_fold.py"]),
        (["tests/core/test_fold.py::test_x", "-x"], ["tests/core/test_fold.py::test_x", "-x"]),
        (["-n", "4"], [*SHARED[2:], "-n", "4"]),
        (["-n0", "-k", "fold"], [*SHARED[2:], "-n0", "-k", "fold"]),
        (["--pdb"], ["--pdb"]),
    ],
)
def test_processes_share_the_suite(words: list[str], given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless one file is named, or the user says how many."""
    assert asked(words, monkeypatch) == given


@pytest.mark.long  # 21 s
@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ([], {"long", "docker", "matrix", "broker"}),
        (["--fast"], {"long", "docker", "matrix", "broker", "promised", "slow"}),
        (["--all"], {"matrix"}),
        (["-m", "docker or slow or long or broker or postgres"], {"matrix"}),
        (["-m", "matrix or docker or slow or long or broker or postgres"], set()),
        (["test_marked.py"], {"matrix"}),
    ],
)
def test_a_tier_leaves_out_what_it_says(options: list[str], left_out: set[str], tmp_path: Path) -> None:
    """Of tests that differ in their marks: by default one with a broker runs if it shows a promise."""
    marks = ("broker", "postgres", "docker", "slow", "long", "matrix")
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.support.needs']\n", encoding="utf-8")
    tests = "".join(f"@pytest.mark.{mark}\ndef test_{mark}(): pass\n" for mark in marks)
    tests += "@pytest.mark.broker\n@pytest.mark.promise('x')\ndef test_promised(): pass\n"
    (tmp_path / "test_marked.py").write_text(f"import pytest\n{tests}", encoding="utf-8")

    printed = own_pytest(tmp_path, "-v", *options).stdout

    everything = {*marks, "promised"}
    assert {mark for mark in everything if f"test_{mark} PASSED" in printed} == everything - left_out, printed
