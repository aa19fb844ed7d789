"""The container stack of docker-compose.yml for tests, with a separate project name, ports and volumes."""

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
PROJECT = "onefold-test-"  # followed by the pid of the test run, so that leftovers of a killed run are recognisable
BOOTSTRAP_S = 240.0  # may pull the base image
BUILD_S = 800.0  # long enough for a slow network, because everything may be downloaded


def pytest_addoption(parser: pytest.Parser) -> None:
    """Option for CI, where an impossible container test is a failure."""
    parser.addoption("--require-docker", action="store_true", help="fail, not skip, when Docker is not ready")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail here only, so that no test decides by itself. Skips from a fixture would each print a line."""
    if item.get_closest_marker("docker") is None or not (trouble := why_not()):
        return
    if item.config.getoption("--require-docker"):
        pytest.fail(HOW.format(trouble), pytrace=False)
    pytest.skip(HOW.format(trouble))


@functools.cache
def why_not() -> str:
    """Reason why Docker is not ready for the stack, in one sentence; "" if ready."""
    ran = subprocess.run(
        [ROOT / "images" / "bootstrap"], check=False, capture_output=True, encoding="utf-8", timeout=BOOTSTRAP_S
    )
    return ran.stderr.strip().splitlines()[-1].removeprefix("docker: not available: ") if ran.returncode else ""


@pytest.fixture(scope="session")
def images() -> None:
    """Build all images from this checkout."""
    compose("--profile", "chaos", "build", timeout=BUILD_S)


@pytest.fixture(scope="module")
def asked_for(images: None) -> float:
    """Monotonic time of the start request; the images exist already."""
    return time.monotonic()


@pytest.fixture(scope="module")
def started(asked_for: float) -> Iterator[Containers]:
    """Start the stack, and remove it at the end. Leftovers of killed runs are removed too."""
    # Ryuk's image is not available without a registry, and these tests never run inside a container.
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
    from testcontainers.compose import DockerCompose  # reads those variables at import

    try:
        with DockerCompose(str(ROOT), wait=True, keep_volumes=False):
            yield Containers()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def sweep() -> None:
    """Remove the stacks of ended test runs, whose containers would restart with Docker."""
    told = subprocess.run(
        ["docker", "ps", "-a", "--format", '{{.Label "com.docker.compose.project"}}'],
        check=True, capture_output=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    for project in {line for line in told.stdout.split() if line.startswith(PROJECT)}:
        if not psutil.pid_exists(int(project.removeprefix(PROJECT))):
            compose("--project-name", project, "down", "--volumes", timeout=120)


def compose(*arguments: str, timeout: float) -> str:
    """Run docker compose on this checkout's file, and return the output. Fails if the command fails."""
    ran = subprocess.run(
        ["docker", "compose", "--ansi", "never", "--progress", "plain", *arguments],
        check=False, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=timeout,
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    return ran.stdout
