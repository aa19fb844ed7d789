"""Access to the embedded stack for faults: processes of this machine, by the pid and creation time in the supervisor's file.

Possible faults are those of processes: kill, terminate, pause and resume. The supervisor starts ended services again. No
process is ended by name.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from onefold.chaos import aim
from onefold.chaos.aim import Publisher
from onefold.chaos.nemeses import Nemesis
from onefold.chaos.nemeses.table import KAFKA, POSTGRES, PROCESSOR, SERVICES, SINK
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code

# Prefixes of faults that are possible for a process.
_POSSIBLE = ("kill-", "restart-", "pause-")


def possible(nemeses: Mapping[str, Nemesis]) -> dict[str, Nemesis]:
    """Select the faults that this stack supports, and the baseline."""
    names = {f"{word}{service}" for word in _POSSIBLE for service in SERVICES} | {"none"}
    return {name: nemesis for name, nemesis in nemeses.items() if name in names}


class Embedded:
    """The running stack of a data directory, as a `chaos.nemeses.Stack` with the faults of processes only.

    Args:
        settings: of the data directory.
        domain: pipeline under load, whose processor a fault hits.
        publisher: names the publishing replica, which a fault hits. None: the pipeline has no replicas.
    """

    def __init__(self, settings: Settings, domain: str, publisher: Publisher | None = None) -> None:
        self._home = settings.home
        self._publisher = publisher
        self._names = {KAFKA: "kafka", POSTGRES: "postgres", SINK: "sink-1", PROCESSOR: f"processor-{domain}-1"}
        self._frozen: list[psutil.Process] = []

    def kill(self, service: str) -> None:
        """Kill with SIGKILL; the supervisor starts the service again."""
        os.kill(self._process(service).pid, signal.SIGKILL)

    def restart(self, service: str) -> None:
        """Terminate with SIGTERM; the supervisor starts the service again."""
        os.kill(self._process(service).pid, signal.SIGTERM)

    def pause(self, service: str) -> None:
        """Pause the process and all its children."""
        process = self._process(service)
        self._frozen = [process, *process.children(recursive=True)]
        for each in self._frozen:
            with suppress(psutil.NoSuchProcess):  # a child that has just ended
                each.suspend()

    def resume(self, service: str) -> None:
        """Resume the paused processes, without those that have ended meanwhile."""
        for each in self._frozen:
            with suppress(psutil.NoSuchProcess):
                each.resume()
        self._frozen = []

    def leave_dead(self, service: str) -> None:
        """Not possible: the supervisor starts ended services again."""
        self._impossible("keep a service dead")

    def revive(self, service: str) -> None:
        """Not possible, as `leave_dead`."""
        self._impossible("revive a service")

    def cut(self, service: str) -> None:
        """Not possible: all services share one loopback."""
        self._impossible("cut a service off")

    def mend(self, service: str) -> None:
        """Not possible, as `cut`."""
        self._impossible("mend a connection")

    def scale(self, service: str, instances: int) -> None:
        """Not possible while the stack runs."""
        self._impossible("scale a service")

    def forget(self, service: str) -> None:
        """Not possible: the data directory holds the scratch files together with all other data."""
        self._impossible("delete a service's files")

    def instances(self, service: str) -> int:
        """Number of processes of a service; for the processor, those of the pipeline under load."""
        running: Iterable[str] = stack_state.read_running(self._home).get("services", {})
        return sum(_kind(name) == _kind(self._names[service]) for name in running)

    def _process(self, service: str) -> psutil.Process:
        name = self._names[service]
        if service == PROCESSOR and self._publisher is not None:
            name = f"{_kind(name)}{aim.known(self._publisher)}"
        entry: dict[str, Any] = stack_state.read_running(self._home).get("services", {}).get(name, {})
        pid, born = entry.get("pid"), entry.get("create_time")
        if not pid or not born or not stack_state.alive(pid, born):
            services: Iterable[str] = stack_state.read_running(self._home).get("services", {})
            raise UserError(
                Code.STACK_STOPPED,
                f"{name} does not run in {self._home}",
                f"What runs there: {', '.join(services) or 'nothing; start it with onefold up'}.",
            )
        return psutil.Process(pid)

    def _impossible(self, what: str) -> NoReturn:
        raise UserError(
            Code.FAULT_IMPOSSIBLE, f"the embedded stack cannot {what}", "Use --stack docker, or another --nemesis."
        )


def _kind(name: str) -> str:
    """Name of a service without the number."""
    return name.rstrip("0123456789")
