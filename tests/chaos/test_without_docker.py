"""The container stack without Docker: the message when it is missing, and which container a fault hits."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from onefold.chaos import aim, containers
from onefold.chaos.containers import Containers
from onefold.chaos.nemeses.table import PROCESSOR
from onefold.cli.commands.kafka import TOOLS
from onefold.cli.main import run
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from tests.support.ahead import ahead
from tests.support.coded import raises
from tests.support.docker import ROOT


def container_tests(*options: str, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """The container tests, as they end without a Docker that answers."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, "tests/chaos/test_containers.py"],
        cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran_with() -> Iterator[Callable[[str], "subprocess.CompletedProcess[str]"]]:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nonexistent.sock"}
    with ahead(
        lambda options: container_tests(*options.split(), environment=environment), ("", "--require-docker")
    ) as ran:
        yield ran


@pytest.mark.long  # 8 s
def test_container_tests_are_skipped_with_one_line(
    ran_with: Callable[[str], "subprocess.CompletedProcess[str]"],
) -> None:
    """The message shows how to get it."""
    ran = ran_with("")

    lines = [line for line in ran.stdout.splitlines() if "NO CONTAINER TEST RAN" in line]
    assert ran.returncode == 0, ran.stdout
    assert len(lines) == 1
    assert "images/bootstrap --install" in lines[0]


@pytest.mark.slow  # 8 s
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
    listed = subprocess.run(
        [ROOT / "images" / "kafka" / "tool", "--list"], check=True, capture_output=True, encoding="utf-8"
    )
    wrapper = (ROOT / "images" / "kafka" / "tool").read_text(encoding="utf-8")
    assert set(listed.stdout.split()) == set(TOOLS)
    assert all(f"[{name}]={main.removeprefix('org.apache.kafka.tools.')}\n" in wrapper for name, main in TOOLS.items())


class Docker:
    """A docker command that knows containers of a processor, and writes down what is done to them."""

    def __init__(self, *containers: str, given: str = "") -> None:
        self.containers, self.given = containers, dict.fromkeys(containers, given)
        self.done: list[tuple[tuple[str, ...], Mapping[str, str] | None]] = []

    def __call__(
        self, *command: str, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        self.done.append((command, environment))
        return subprocess.CompletedProcess(command, 0, self._answer(command), "")

    def _answer(self, command: tuple[str, ...]) -> str:
        if command[1] == "ps":
            form = {"{{.Status}}": "Up 1 second (healthy)"}.get(command[-1])
            return "\n".join(form or f"2026-01-0{number + 1} {each}" for number, each in enumerate(self.containers))
        if command[1] == "inspect":
            return f"PATH=/bin\nONEFOLD_REPLICAS={self.given[command[-1]]}\n"
        return "127.0.0.1:1\n"

    def hit(self, act: str) -> list[str]:
        """Whom that was done to."""
        return [command[-1] for command, _ in self.done if command[1] == act]


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Two processors, whose replicas go by the first twelve letters of their ids."""
    found = Docker("a" * 64, "b" * 64, given="2")
    monkeypatch.setattr(containers, "missing", lambda: "")
    monkeypatch.setattr(containers, "_ask", found)
    return found


def test_of_replicas_in_containers_the_one_is_hit_that_publishes(
    docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is healed, although the other one publishes meanwhile. A name that no container has is not believed."""
    said = iter([None, "c" * 12, "b" * 12, "a" * 12])
    monkeypatch.setattr(aim, "publisher_of", lambda domain, settings: next(said))
    monkeypatch.setattr(aim, "ASK_EVERY_S", 0.0)
    stack = Containers().under("runner", Containers().settings(Settings()))

    stack.pause(PROCESSOR)
    stack.resume(PROCESSOR)
    assert (docker.hit("pause"), docker.hit("unpause")) == (["b" * 64], ["b" * 64])
    stack.leave_dead(PROCESSOR)
    assert docker.hit("kill") == ["a" * 64]


def test_what_was_not_hit_is_not_healed(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when nobody is known to publish: that is what is said, and not that an untouched container cannot be unfrozen."""
    monkeypatch.setattr(aim, "KNOWN_WITHIN_S", 0)
    stack = Containers().under("runner", Containers().settings(Settings()))
    for inject, heal in ((stack.pause, stack.resume), (stack.cut, stack.mend)):
        with raises(UserError, Code.FAULT_IMPOSSIBLE):
            inject(PROCESSOR)
        heal(PROCESSOR)
    assert {command[1] for command, _ in docker.done} <= {"ps", "port", "exec", "inspect"}


@pytest.mark.parametrize(("given", "replicas"), [("2", 2), ("", None)])
def test_the_containers_tell_how_many_replicas_there_are(docker: Docker, given: str, replicas: int | None) -> None:
    """Whatever this process was told; and a new container is told the same."""
    docker.given = dict.fromkeys(docker.containers, given)
    stack = Containers()
    assert stack.settings(Settings(replicas=3)).replicas == replicas
    stack.scale(PROCESSOR, 3)
    assert [environment for _, environment in docker.done if environment] == [{"ONEFOLD_REPLICAS": given}]


def test_an_elastic_pipeline_in_containers_loses_the_oldest_processor(docker: Docker) -> None:
    """It has no publisher."""
    docker.given = dict.fromkeys(docker.containers, "")
    stack = Containers().under("runner", Containers().settings(Settings()))
    stack.pause(PROCESSOR)
    assert docker.hit("pause") == ["a" * 64]


def test_containers_that_were_told_different_numbers_are_refused(docker: Docker) -> None:
    """They are a mistake already."""
    docker.given["b" * 64] = ""
    with raises(UserError, Code.CONTAINERS, "ONEFOLD_REPL"):
        Containers().settings(Settings())
