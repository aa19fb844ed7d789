"""The stack in containers, as nemeses and commands see it: through the docker command, found by compose's own labels."""

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
COMMAND_S = 120.0  # a command of docker; the slowest stops a service that finishes its batch
HEALTHY_S = 120.0  # until a new instance is healthy; the slowest is Spark, on a busy machine
DEATH_S = 10.0  # until Docker has noticed that a killed container ended
ASK_AGAIN_S = 0.5
REPLICAS = "ONEFOLD_REPLICAS"
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
    """A running stack of docker-compose.yml. It is what `onefold.chaos.nemeses.Stack` asks for. A fault hits the oldest
    container of a service; of replicas, once it is known which pipeline is `under` load, the one that publishes.

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
        self._held: dict[str, str] = {}  # by service the container that is frozen, or cut off

    def under(self, domain: str, settings: Settings) -> Containers:
        """The same stack with this pipeline under load.

        Args:
            settings: of the stack, as `settings` gives them.
        """
        stack = copy.copy(self)
        stack._publisher, stack._held = aim.publisher_in(domain, settings), {}
        return stack

    def settings(self, settings: Settings) -> Settings:
        """The settings with the stack's own Kafka and PostgreSQL, as this machine reaches them, and its replicas."""
        kafka = self._published("kafka", KAFKA_INSIDE)
        password = _run("docker", "exec", self.of("postgres")[0], "printenv", "POSTGRES_OWNER_PASSWORD").strip()
        dsn = f"postgresql://onefold_owner:{quote(password, safe='')}@{self._published('postgres', POSTGRES_INSIDE)}/onefold"
        stack = {"bootstrap_servers": kafka, "postgres_dsn": dsn, "replicas": int(self._replicas() or 0) or None}
        return settings.model_copy(update=stack)

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
        if not until(lambda: self.healthy(service), HEALTHY_S, ASK_AGAIN_S):
            raise UserError(
                Code.CONTAINERS,
                f"{service} is not healthy after {HEALTHY_S:.0f} s",
                f"See why with: docker compose logs {service}",
            )

    def told_by_judge(self, *arguments: str, patience_s: float) -> str:
        """What `onefold verify` prints in a container of its own, where the objects are; whatever it ends with.

        Args:
            patience_s: how long it may take, beside what any command of docker may.

        Raises UserError when it takes longer.
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
        """kill -9 of all that runs in the container but its first process, which then ends: Docker starts it again.
        After a `docker kill` it would not.

        Raises UserError when it did not end: a fault that does nothing would be survived by everything.
        """
        container = self._hit(service)
        lives = self._lives(container)
        killed = _ask("docker", "exec", container, "sh", "-c", "kill -9 -1")  # which may be reported as a failure
        if not until(lambda: self._lives(container) != lives, DEATH_S, ASK_AGAIN_S):
            raise UserError(
                Code.CONTAINERS, f"{service} was not killed: {killed.stderr.strip() or 'its container runs on'}"
            )

    def _lives(self, container: str) -> str:
        """What changes when the container ends or starts."""
        return _run("docker", "inspect", "--format", "{{.State.StartedAt}} {{.State.FinishedAt}}", container)

    def leave_dead(self, service: str) -> None:
        """kill -9 of the container; Docker takes that for our wish, and does not start it again."""
        _run("docker", "kill", self._hit(service))

    def revive(self, service: str) -> None:
        """Start what was left dead, and wait until it is healthy: its stand-in may be stopped then."""
        _run("docker", "start", *self.of(service))
        self.wait_healthy(service)

    def restart(self, service: str) -> None:
        """Ask it to end, and start it again."""
        _run("docker", "restart", "--time", "40", self._hit(service))

    def pause(self, service: str) -> None:
        """Freeze it."""
        _run("docker", "pause", self._hold(service))

    def resume(self, service: str) -> None:
        """Let it go on, if it was frozen."""
        if container := self._held.pop(service, None):
            _run("docker", "unpause", container)

    def cut(self, service: str) -> None:
        """Drop all packets from and to it, inside its own network, so that no side is notified."""
        self._in_network(self._hold(service), CUT)

    def mend(self, service: str) -> None:
        """Let packets pass again, if they were dropped."""
        if container := self._held.pop(service, None):
            self._in_network(container, MEND)

    def scale(self, service: str, instances: int) -> None:
        """Have so many instances of it, and wait until all are healthy. A new one is told what the others were of replicas."""
        scale = ("--scale", f"{service}={instances}")
        command = self._compose("up", "--detach", "--no-deps", "--no-recreate", "--no-build", *scale, service)
        _run(*command, environment={REPLICAS: self._replicas()})
        self.wait_healthy(service)

    def forget(self, service: str) -> None:
        """Delete its scratch files while it runs."""
        _run("docker", "exec", self.of(service)[0], "sh", "-c", FORGET)

    def instances(self, service: str) -> int:
        """How many containers of it there are."""
        return len(self.of(service))

    def _hit(self, service: str) -> str:
        """The container that a fault hits."""
        containers = self.of(service)
        if service != PROCESSOR or len(containers) == 1 or (publisher := self._publisher) is None:
            return containers[0]

        def publishes() -> str | None:
            # A container's own name, which its replica goes by, is the beginning of its id. One that is gone may be named still.
            name = publisher()
            return next((each for each in containers if name and each.startswith(name)), None)

        return aim.known(publishes)

    def _hold(self, service: str) -> str:
        """Likewise, and whoever heals it finds it again: somebody else publishes meanwhile."""
        self._held[service] = self._hit(service)
        return self._held[service]

    def _replicas(self) -> str:
        """ONEFOLD_REPLICAS of the stack's processors; "" if they have none: each pipeline has what it declares. Raises UserError
        when they differ.
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
    """What a container has in a variable of its environment, whether it runs or not; "" when it has none of that name."""
    listed = _run("docker", "inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", container)
    return dict(line.partition("=")[::2] for line in listed.splitlines()).get(variable, "")


def _ask(*command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, encoding="utf-8", errors="replace", timeout=COMMAND_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """What a command printed. Raises UserError when it fails."""
    ran = _ask(*command, environment=environment)
    if ran.returncode != 0:
        printed = (ran.stderr or ran.stdout).strip().splitlines()
        raise UserError(
            Code.CONTAINERS, f"`{' '.join(command[:3])}` failed: {printed[0] if printed else ran.returncode}"
        )
    return ran.stdout
