"""The embedded stack, as nemeses see it: processes of this machine, found by the pid and birth time that the supervisor wrote.

Only what can be done to a process: it is killed, asked to end, frozen and let go on. The supervisor starts it again, as it
does with every service that ends. Nothing is ever ended by its name.
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

# What can be done to a process, by the words with which a nemesis begins.
_POSSIBLE = ("kill-", "restart-", "pause-")


def possible(nemeses: Mapping[str, Nemesis]) -> dict[str, Nemesis]:
    """Those that this stack can suffer, the control among them."""
    names = {f"{word}{service}" for word in _POSSIBLE for service in SERVICES} | {"none"}
    return {name: nemesis for name, nemesis in nemeses.items() if name in names}


class Embedded:
    """The running stack of a home. It is what `chaos.nemeses.Stack` asks for, as far as that can be done to processes.

    Args:
        settings: of the home.
        domain: the pipeline under load; a fault of the processor hits its own.
        publisher: says which of its replicas publishes; that one is hit. Not given: the pipeline has no replicas.
    """

    def __init__(self, settings: Settings, domain: str, publisher: Publisher | None = None) -> None:
        self._home = settings.home
        self._publisher = publisher
        self._names = {KAFKA: "kafka", POSTGRES: "postgres", SINK: "sink-1", PROCESSOR: f"processor-{domain}-1"}
        self._frozen: list[psutil.Process] = []

    def kill(self, service: str) -> None:
        """kill -9. The supervisor starts it again."""
        os.kill(self._process(service).pid, signal.SIGKILL)

    def restart(self, service: str) -> None:
        """Ask it to end; the supervisor starts it again."""
        os.kill(self._process(service).pid, signal.SIGTERM)

    def pause(self, service: str) -> None:
        """Freeze it and all that it has started."""
        process = self._process(service)
        self._frozen = [process, *process.children(recursive=True)]
        for each in self._frozen:
            with suppress(psutil.NoSuchProcess):  # a worker that has just ended
                each.suspend()

    def resume(self, service: str) -> None:
        """Let it go on where it was; one that was ended meanwhile is no reason to stop here."""
        for each in self._frozen:
            with suppress(psutil.NoSuchProcess):
                each.resume()
        self._frozen = []

    def leave_dead(self, service: str) -> None:
        """Not possible: the supervisor starts again what ends."""
        self._impossible("keep a service dead")

    def revive(self, service: str) -> None:
        """Not possible, as `leave_dead` is not."""
        self._impossible("revive a service")

    def cut(self, service: str) -> None:
        """Not possible: all services share one loopback."""
        self._impossible("cut a service off")

    def mend(self, service: str) -> None:
        """Not possible, as `cut` is not."""
        self._impossible("mend a connection")

    def scale(self, service: str, instances: int) -> None:
        """Not possible while it runs."""
        self._impossible("scale a service")

    def forget(self, service: str) -> None:
        """Not possible: the scratch files are in the home, with everything else."""
        self._impossible("delete a service's files")

    def instances(self, service: str) -> int:
        """How many processes of it there are: of the processor, those of the pipeline under load."""
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
    """The name of a service without its number."""
    return name.rstrip("0123456789")
