"""The container stack without Docker; above all, the message when Docker is missing."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from onefold.cli.commands.kafka import TOOLS
from onefold.cli.main import run
from tests.support.ahead import ahead
from tests.support.docker import ROOT


def container_tests(*options: str, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """The container tests, as they end without a Docker that answers."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, "tests/chaos/test_containers.py"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran_with() -> Iterator[Callable[[str], "subprocess.CompletedProcess[str]"]]:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nonexistent.sock"}
    with ahead(
        lambda options: container_tests(*options.split(), environment=environment), ("", "--require-docker")
    ) as ran:
        yield ran


def test_container_tests_are_skipped_with_one_line(
    ran_with: Callable[[str], "subprocess.CompletedProcess[str]"],
) -> None:
    """The message shows how to get it."""
    ran = ran_with("")

    lines = [line for line in ran.stdout.splitlines() if "NO CONTAINER TEST RAN" in line]
    assert ran.returncode == 0, ran.stdout
    assert len(lines) == 1
    assert "images/bootstrap --install" in lines[0]


def test_or_they_fail_when_they_are_required(
    ran_with: Callable[[str], "subprocess.CompletedProcess[str]"],
) -> None:
    """CI must not be green because it lost them."""
    ran = ran_with("--require-docker")

    assert ran.returncode == 1
    assert "NO CONTAINER TEST RAN" in ran.stdout


def test_chaos_without_docker_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message shows what to do."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")

    assert run(["chaos", "--nemesis", "none"]) == 1
    message = capsys.readouterr().err
    assert "no Docker daemon answers" in message or "there is no docker command" in message
    assert "images/bootstrap --install" in message
    assert run(["chaos", "--nemesis", "flood"]) == 2


def test_kafkas_tools_have_the_same_names_everywhere() -> None:
    """In the image and as `onefold kafka`."""
    listed = subprocess.run([ROOT / "images" / "kafka" / "tool", "--list"], check=True, capture_output=True, text=True)
    wrapper = (ROOT / "images" / "kafka" / "tool").read_text()
    assert set(listed.stdout.split()) == set(TOOLS)
    assert all(f"[{name}]={main.removeprefix('org.apache.kafka.tools.')}\n" in wrapper for name, main in TOOLS.items())
