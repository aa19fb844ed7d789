"""The stack in containers, as nemeses and commands see it: through the docker command, found by compose's own labels."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import quote

from onefold.operate.errors import UserError
from onefold.operate.settings import Settings

PROJECT = "onefold"  # the name in docker-compose.yml; COMPOSE_PROJECT_NAME overrides it
FILE = Path(__file__).resolve().parents[1] / "docker-compose.yml"
NETFAULT = "onefold/netfault:dev"
COMMAND_S = 120.0  # a command of docker; the slowest stops a service that finishes its batch
HEALTHY_S = 120.0  # until a new instance is healthy; the slowest is Spark, on a busy machine
DEATH_S = 10.0  # until Docker has noticed that a killed container ended
ASK_AGAIN_S = 0.5
KAFKA_INSIDE, POSTGRES_INSIDE = "29092", "5432"  # the ports that docker-compose.yml publishes

# Everything but the container's own loopback, both ways: its peers get nothing, not even a refusal.
CUT = "iptables -A INPUT ! -i lo -j DROP && iptables -A OUTPUT ! -o lo -j DROP"
MEND = "iptables -F INPUT && iptables -F OUTPUT"
# A sink's scratch: its volume, and the file system in memory that its checkpoints are on.
FORGET = "rm -rf /var/lib/onefold/* /dev/shm/*"


def missing() -> str:
    """Why Docker cannot be used, in one sentence; nothing when it can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    if _ask("docker", "info", "--format", "{{.ServerVersion}}").returncode != 0:
        return "no Docker daemon answers"
    if _ask("docker", "compose", "version").returncode != 0:
        return "the plugin docker compose is missing"
    return ""


class Containers:
    """A running stack of docker-compose.yml. It is what `onefold.chaos.nemeses.Stack` asks for.

    Raises UserError when Docker is missing or the stack is not running.
    """

    def __init__(self, project: str | None = None) -> None:
        self.project = project or os.environ.get("COMPOSE_PROJECT_NAME") or PROJECT
        if why := missing():
            raise UserError(why, "Install and start Docker; as root on Debian: images/bootstrap --install")
        if not self.of("kafka") or not self.of("postgres"):
            raise UserError(
                f"the container stack {self.project} is not running", "Start it with: docker compose up --detach --wait"
            )

    def settings(self, settings: Settings) -> Settings:
        """The settings with the stack's own Kafka and PostgreSQL, as this machine reaches them."""
        kafka = self._published("kafka", KAFKA_INSIDE)
        password = _run("docker", "exec", self.of("postgres")[0], "printenv", "POSTGRES_PASSWORD").strip()
        dsn = f"postgresql://onefold:{quote(password, safe='')}@{self._published('postgres', POSTGRES_INSIDE)}/onefold"
        return settings.model_copy(update={"bootstrap_servers": kafka, "postgres_dsn": dsn})

    def of(self, service: str) -> list[str]:
        """The ids of a service's containers, the oldest first, whatever state they are in."""
        listed = self._list(service, "{{.CreatedAt}} {{.ID}}")
        return [line.split()[-1] for line in sorted(listed.splitlines())]

    def healthy(self, service: str) -> bool:
        """Whether every instance of the service is, by its own health check."""
        statuses = self._list(service, "{{.Status}}").splitlines()
        return bool(statuses) and all(each.startswith("Up ") and each.endswith("(healthy)") for each in statuses)

    def wait_healthy(self, service: str) -> None:
        """Returns when `healthy`. Raises UserError when that takes too long."""
        deadline, pause = time.monotonic() + HEALTHY_S, threading.Event()
        while not self.healthy(service):
            if time.monotonic() > deadline:
                raise UserError(
                    f"{service} is not healthy after {HEALTHY_S:.0f} s", f"See why with: docker compose logs {service}"
                )
            pause.wait(ASK_AGAIN_S)

    def told_by_judge(self, *arguments: str, patience_s: float) -> str:
        """What `onefold verify` prints in a container of its own, where the objects are; whatever it ends with.

        Args:
            patience_s: how long it may take, beside what any command of docker may.

        Raises UserError when it takes longer.
        """
        try:
            ran = subprocess.run(
                self._compose("run", "--rm", "--no-deps", "--no-TTY", "judge", *arguments),
                check=False, capture_output=True, text=True, timeout=patience_s + COMMAND_S, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UserError(f"the judge in a container took longer than {patience_s + COMMAND_S:.0f} s") from None
        return ran.stdout or ran.stderr

    def kill(self, service: str) -> None:
        """kill -9 of all that runs in the container but its first process, which then ends: Docker starts it again.
        After a `docker kill` it would not.

        Raises UserError when it did not end: a fault that does nothing would be survived by everything.
        """
        container = self.of(service)[0]
        lives = self._lives(container)
        killed = _ask("docker", "exec", container, "sh", "-c", "kill -9 -1")  # which may be reported as a failure
        deadline, pause = time.monotonic() + DEATH_S, threading.Event()
        while self._lives(container) == lives:
            if time.monotonic() > deadline:
                raise UserError(f"{service} was not killed: {killed.stderr.strip() or 'its container runs on'}")
            pause.wait(ASK_AGAIN_S)

    def _lives(self, container: str) -> str:
        """What changes when the container ends or starts."""
        return _run("docker", "inspect", "--format", "{{.State.StartedAt}} {{.State.FinishedAt}}", container)

    def leave_dead(self, service: str) -> None:
        """kill -9 of the container; Docker takes that for our wish, and does not start it again."""
        _run("docker", "kill", self.of(service)[0])

    def revive(self, service: str) -> None:
        """Start what was left dead, and wait until it is healthy: its stand-in may be stopped then."""
        _run("docker", "start", *self.of(service))
        self.wait_healthy(service)

    def restart(self, service: str) -> None:
        """Ask it to end, and start it again."""
        _run("docker", "restart", "--time", "40", self.of(service)[0])

    def pause(self, service: str) -> None:
        """Freeze it."""
        _run("docker", "pause", self.of(service)[0])

    def resume(self, service: str) -> None:
        """Let it go on."""
        _run("docker", "unpause", self.of(service)[0])

    def cut(self, service: str) -> None:
        """Drop all packets from and to it, inside its own network, so that no side is notified."""
        self._in_network(service, CUT)

    def mend(self, service: str) -> None:
        """Let packets pass again."""
        self._in_network(service, MEND)

    def scale(self, service: str, instances: int) -> None:
        """Have so many instances of it, and wait until all are healthy."""
        scale = ("--scale", f"{service}={instances}")
        _run(*self._compose("up", "--detach", "--no-deps", "--no-recreate", "--no-build", *scale, service))
        self.wait_healthy(service)

    def forget(self, service: str) -> None:
        """Delete its scratch files while it runs."""
        _run("docker", "exec", self.of(service)[0], "sh", "-c", FORGET)

    def instances(self, service: str) -> int:
        """How many containers of it there are."""
        return len(self.of(service))

    def _compose(self, *arguments: str) -> tuple[str, ...]:
        return (
            "docker",
            "compose",
            "--project-name",
            self.project,
            "--file",
            str(FILE),
            "--progress",
            "quiet",
            *arguments,
        )

    def _list(self, service: str, form: str) -> str:
        labels = (f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}")
        filters = [part for label in labels for part in ("--filter", f"label={label}")]
        return _run("docker", "ps", "--all", "--no-trunc", *filters, "--format", form)

    def _in_network(self, service: str, command: str) -> None:
        if _ask("docker", "image", "inspect", NETFAULT).returncode != 0:
            raise UserError(
                f"the image {NETFAULT} is missing", "Build it with: docker compose --profile chaos build netfault"
            )
        network = f"container:{self.of(service)[0]}"
        _run("docker", "run", "--rm", "--network", network, "--cap-add", "NET_ADMIN", NETFAULT, "sh", "-c", command)

    def _published(self, service: str, port: str) -> str:
        return _run("docker", "port", self.of(service)[0], port).splitlines()[0]


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL
    )


def _run(*command: str) -> str:
    """What a command printed. Raises UserError when it fails."""
    ran = _ask(*command)
    if ran.returncode != 0:
        printed = (ran.stderr or ran.stdout).strip().splitlines()
        raise UserError(f"`{' '.join(command[:3])}` failed: {printed[0] if printed else ran.returncode}")
    return ran.stdout
