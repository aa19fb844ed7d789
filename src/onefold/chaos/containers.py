"""Access to a stack in containers for faults and commands: through the docker command, by the labels of compose."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Mapping
from urllib.parse import quote

from onefold.chaos import aim
from onefold.chaos.aim import Publisher
from onefold.chaos.nemeses.table import PROCESSOR
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.places import TOP
from onefold.waiting import until

PROJECT = "onefold"  # the name in docker-compose.yml; COMPOSE_PROJECT_NAME overrides it
FILE = TOP / "docker-compose.yml"
NETFAULT = "onefold/netfault:dev"
COMMAND_S = 120.0  # limit of a docker command; the slowest stops a service that finishes a batch
HEALTHY_S = 120.0  # until a new instance is healthy; Spark on a busy machine is slowest
DEATH_S = 10.0  # until Docker detects the end of a killed container
ASK_AGAIN_S = 0.5
REPLICAS = "ONEFOLD_REPLICAS"
KAFKA_INSIDE, POSTGRES_INSIDE = "29092", "5432"  # ports that docker-compose.yml publishes

# Drop all packets both ways except on the container's own loopback, so that peers get no refusal either.
CUT = "iptables -A INPUT ! -i lo -j DROP && iptables -A OUTPUT ! -o lo -j DROP"
MEND = "iptables -F INPUT && iptables -F OUTPUT"
# Scratch files of a sink: the volume, and the file system in memory with the checkpoints.
FORGET = "rm -rf /var/lib/onefold/* /dev/shm/*"


def missing() -> str:
    """Reason why Docker cannot be used, in one sentence; "" if usable."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    if _ask("docker", "info", "--format", "{{.ServerVersion}}").returncode != 0:
        return "no Docker daemon answers"
    if _ask("docker", "compose", "version").returncode != 0:
        return "the plugin docker compose is missing"
    return ""


class Containers:
    """A running stack of docker-compose.yml, as a `onefold.chaos.nemeses.Stack`.

    A fault hits the oldest container of a service. Of replicas, a fault hits the publisher, once `under` names the
    pipeline.

    Raises UserError when Docker is missing or the stack is not running.
    """

    def __init__(self, project: str | None = None) -> None:
        self.project = project or os.environ.get("COMPOSE_PROJECT_NAME") or PROJECT
        if why := missing():
            raise UserError(
                Code.CONTAINERS, why, "Install and start Docker; as root on Debian: images/bootstrap --install"
            )
        if not self.of("kafka") or not self.of("postgres"):
            raise UserError(
                Code.CONTAINERS,
                f"the container stack {self.project} is not running",
                "Start it with: docker compose up --detach --wait",
            )
        self._publisher: Publisher | None = None
        self._held: dict[str, str] = {}  # by service the container that is paused or cut off

    def under(self, domain: str, settings: Settings) -> Containers:
        """Return the same stack with this pipeline under load.

        Args:
            settings: of the stack, from `settings`.
        """
        stack = copy.copy(self)
        stack._publisher, stack._held = aim.publisher_in(domain, settings), {}
        return stack

    def settings(self, settings: Settings) -> Settings:
        """Return the settings with the stack's own Kafka and PostgreSQL, by addresses of this machine, and the number of
        replicas."""
        kafka = self._published("kafka", KAFKA_INSIDE)
        password = _run("docker", "exec", self.of("postgres")[0], "printenv", "POSTGRES_OWNER_PASSWORD").strip()
        dsn = f"postgresql://onefold_owner:{quote(password, safe='')}@{self._published('postgres', POSTGRES_INSIDE)}/onefold"
        stack = {"bootstrap_servers": kafka, "postgres_dsn": dsn, "replicas": int(self._replicas() or 0) or None}
        return settings.model_copy(update=stack)

    def of(self, service: str) -> list[str]:
        """Container ids of a service in any state, the oldest first."""
        listed = self._list(service, "{{.CreatedAt}} {{.ID}}")
        return [line.split()[-1] for line in sorted(listed.splitlines())]

    def healthy(self, service: str) -> bool:
        """Whether every instance of the service is healthy by its health check."""
        statuses = self._list(service, "{{.Status}}").splitlines()
        return bool(statuses) and all(each.startswith("Up ") and each.endswith("(healthy)") for each in statuses)

    def wait_healthy(self, service: str) -> None:
        """Wait until `healthy`. Raises UserError after the limit."""
        if not until(lambda: self.healthy(service), HEALTHY_S, ASK_AGAIN_S):
            raise UserError(
                Code.CONTAINERS,
                f"{service} is not healthy after {HEALTHY_S:.0f} s",
                f"See why with: docker compose logs {service}",
            )

    def told_by_judge(self, *arguments: str, patience_s: float) -> str:
        """Run `onefold verify` in a container, which has access to the objects. Return the output for any exit code.

        Args:
            patience_s: limit of the run, beyond the limit of any docker command.

        Raises UserError after the limit.
        """
        try:
            ran = subprocess.run(
                self._compose("run", "--rm", "--no-deps", "--no-TTY", "judge", *arguments),
                check=False, capture_output=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL,
                timeout=patience_s + COMMAND_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UserError(
                Code.CONTAINERS, f"`onefold verify` in a container took longer than {patience_s + COMMAND_S:.0f} s"
            ) from None
        return ran.stdout or ran.stderr

    def kill(self, service: str) -> None:
        """Kill all processes in the container with SIGKILL except the first, which then ends, so that Docker starts the
        container again.

        After `docker kill`, Docker would not start the container. Raises UserError if the container does not end, because
        every test survives a fault without effect.
        """
        container = self._hit(service)
        lives = self._lives(container)
        killed = _ask("docker", "exec", container, "sh", "-c", "kill -9 -1")  # docker may report a failure
        if not until(lambda: self._lives(container) != lives, DEATH_S, ASK_AGAIN_S):
            raise UserError(
                Code.CONTAINERS, f"{service} was not killed: {killed.stderr.strip() or 'its container runs on'}"
            )

    def _lives(self, container: str) -> str:
        """Times of start and end, which change when the container ends or starts."""
        return _run("docker", "inspect", "--format", "{{.State.StartedAt}} {{.State.FinishedAt}}", container)

    def leave_dead(self, service: str) -> None:
        """Kill the container with `docker kill`, after which Docker does not start the container again."""
        _run("docker", "kill", self._hit(service))

    def revive(self, service: str) -> None:
        """Start the killed container, and wait until the service is healthy, so that the other instance may be stopped."""
        _run("docker", "start", *self.of(service))
        self.wait_healthy(service)

    def restart(self, service: str) -> None:
        """Stop the container gracefully, and start the container again."""
        _run("docker", "restart", "--time", "40", self._hit(service))

    def pause(self, service: str) -> None:
        """Pause the container."""
        _run("docker", "pause", self._hold(service))

    def resume(self, service: str) -> None:
        """Resume the container, if paused."""
        if container := self._held.pop(service, None):
            _run("docker", "unpause", container)

    def cut(self, service: str) -> None:
        """Drop all packets from and to the container, inside the container's network, so that no side gets a notice."""
        self._in_network(self._hold(service), CUT)

    def mend(self, service: str) -> None:
        """Accept packets again, if they were dropped."""
        if container := self._held.pop(service, None):
            self._in_network(container, MEND)

    def scale(self, service: str, instances: int) -> None:
        """Scale the service, and wait until all instances are healthy. New instances get ONEFOLD_REPLICAS of the existing
        ones."""
        scale = ("--scale", f"{service}={instances}")
        command = self._compose("up", "--detach", "--no-deps", "--no-recreate", "--no-build", *scale, service)
        _run(*command, environment={REPLICAS: self._replicas()})
        self.wait_healthy(service)

    def forget(self, service: str) -> None:
        """Delete the scratch files of the running service."""
        _run("docker", "exec", self.of(service)[0], "sh", "-c", FORGET)

    def instances(self, service: str) -> int:
        """Number of containers of the service."""
        return len(self.of(service))

    def _hit(self, service: str) -> str:
        """The container that a fault hits."""
        containers = self.of(service)
        if service != PROCESSOR or len(containers) == 1 or (publisher := self._publisher) is None:
            return containers[0]

        def publishes() -> str | None:
            # A replica's name is its container's host name, a prefix of the container id. The publisher may be gone, but still
            # named.
            name = publisher()
            return next((each for each in containers if name and each.startswith(name)), None)

        return aim.known(publishes)

    def _hold(self, service: str) -> str:
        """Choose the container for a fault, and keep the choice for healing, because the publisher changes meanwhile."""
        self._held[service] = self._hit(service)
        return self._held[service]

    def _replicas(self) -> str:
        """Value of ONEFOLD_REPLICAS of the stack's processors; "" if unset, so that each pipeline's declaration counts.

        Raises UserError if the values differ.
        """
        told = {_given(each, REPLICAS) for each in self.of(PROCESSOR)}
        if len(told) > 1:
            raise UserError(
                Code.CONTAINERS,
                f"not all processors of the container stack {self.project} have the same {REPLICAS}",
                "Start them again, all with the same: docker compose up --detach --wait",
            )
        return next(iter(told), "")

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

    def _in_network(self, container: str, command: str) -> None:
        if _ask("docker", "image", "inspect", NETFAULT).returncode != 0:
            raise UserError(
                Code.CONTAINERS,
                f"the image {NETFAULT} is missing",
                "Build it with: docker compose --profile chaos build netfault",
            )
        network = f"container:{container}"
        _run("docker", "run", "--rm", "--network", network, "--cap-add", "NET_ADMIN", NETFAULT, "sh", "-c", command)

    def _published(self, service: str, port: str) -> str:
        return _run("docker", "port", self.of(service)[0], port).splitlines()[0]


def _given(container: str, variable: str) -> str:
    """Value of an environment variable of a container in any state; "" if unset."""
    listed = _run("docker", "inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", container)
    return dict(line.partition("=")[::2] for line in listed.splitlines()).get(variable, "")


def _ask(*command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, encoding="utf-8", errors="replace", timeout=COMMAND_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command, and return the output. Raises UserError on failure."""
    ran = _ask(*command, environment=environment)
    if ran.returncode != 0:
        printed = (ran.stderr or ran.stdout).strip().splitlines()
        raise UserError(
            Code.CONTAINERS, f"`{' '.join(command[:3])}` failed: {printed[0] if printed else ran.returncode}"
        )
    return ran.stdout
