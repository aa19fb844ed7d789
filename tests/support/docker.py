"""The container stack of docker-compose.yml, with a name, ports and volumes of its own, for the tests that need it."""

import functools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from onefold.chaos.containers import Containers
from onefold.stack.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
HOW = "NO CONTAINER TEST RAN ({}). Start Docker, or as root on Debian run images/bootstrap --install; .ci/run requires them"
PROJECT = "onefold-test-"  # and the pid of the test run: a run that was killed can be told from one that is at work
BOOTSTRAP_S = 240.0  # it may pull the base image
BUILD_S = 800.0  # one minute here, with everything to be downloaded; a slow network takes longer


def pytest_addoption(parser: pytest.Parser) -> None:
    """For CI: container tests that cannot run are a failure there."""
    parser.addoption("--require-docker", action="store_true", help="fail, not skip, when Docker is not ready")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Decided here and nowhere else: no test skips on a judgement of its own. From a fixture, each would be a line."""
    if item.get_closest_marker("docker") is None or not (trouble := why_not()):
        return
    if item.config.getoption("--require-docker"):
        pytest.fail(HOW.format(trouble), pytrace=False)
    pytest.skip(HOW.format(trouble))


@functools.cache
def why_not() -> str:
    """What keeps Docker from being ready for the stack, in one sentence; nothing when it is."""
    ran = subprocess.run(
        [ROOT / "images" / "bootstrap"], check=False, capture_output=True, encoding="utf-8", timeout=BOOTSTRAP_S
    )
    return ran.stderr.strip().splitlines()[-1].removeprefix("docker: not available: ") if ran.returncode else ""


@pytest.fixture(scope="session")
def images() -> None:
    """All images, built from this checkout."""
    compose("--profile", "chaos", "build", timeout=BUILD_S)


@pytest.fixture(scope="module")
def asked_for(images: None) -> float:
    """When the stack was asked for, in monotonic seconds; the images were there."""
    return time.monotonic()


@pytest.fixture(scope="module")
def started(asked_for: float) -> Iterator[Containers]:
    """The running stack; everything of it is removed again, also what a killed run before this one left."""
    # There is no reaper where no image registry answers; and from a container these tests are not run.
    ours = {"TESTCONTAINERS_RYUK_DISABLED": "true", "TESTCONTAINERS_CONNECTION_MODE": "docker_host"}
    kafka, postgres, dashboard = free_ports(3)
    ours |= {
        "COMPOSE_PROJECT_NAME": f"{PROJECT}{os.getpid()}",
        "KAFKA_PORT": str(kafka),
        "POSTGRES_PORT": str(postgres),
        "DASHBOARD_PORT": str(dashboard),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    sweep()
    from testcontainers.compose import DockerCompose  # reads those variables while it is imported

    try:
        with DockerCompose(str(ROOT), wait=True, keep_volumes=False):
            yield Containers()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def sweep() -> None:
    """Remove the stacks of test runs that are no more: their containers start again whenever Docker does."""
    told = subprocess.run(
        ["docker", "ps", "-a", "--format", '{{.Label "com.docker.compose.project"}}'],
        check=True, capture_output=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    for project in {line for line in told.stdout.split() if line.startswith(PROJECT)}:
        if not psutil.pid_exists(int(project.removeprefix(PROJECT))):
            compose("--project-name", project, "down", "--volumes", timeout=120)


def compose(*arguments: str, timeout: float) -> str:
    """Run docker compose on this checkout's file; what it printed. Fails when it does."""
    ran = subprocess.run(
        ["docker", "compose", "--ansi", "never", "--progress", "plain", *arguments],
        check=False, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=timeout,
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    return ran.stdout
