"""The ports of a stack on loopback, and their reservation while no service listens on them."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.error_codes import Code

# Below Linux's range of ports for outgoing connections (32768 and up): a connection could take a port of that range while a
# killed service restarts.
PORTS = range(21000, 32000)
_HERE = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The ports of a stack, on loopback. No version in the file, because 0.1.0 ignores a file with unknown fields."""

    kafka: int
    controller: int
    postgres: int
    dashboard: int = 0  # missing in the files of an older Onefold


def choose_ports(home: Path, **asked: int) -> Ports:
    """The ports of the stack in `home`. Without a number, or with 0, a service gets the last port if free, else a free port.

    Args:
        asked: numbers by the fields of `Ports`.

    Raises:
        UserError: a requested port is taken, or a newer Onefold wrote the last ports.
    """
    if taken := {name: port for name, port in asked.items() if port and not if_free(port)}:
        raise _taken(taken)
    last, fresh = vars(_last(home)), iter(free_ports(len(fields(Ports))))
    chosen = {name: asked.get(name) or if_free(port) or next(fresh) for name, port in last.items()}
    stack_state.write(_file(home), chosen)
    return Ports(**chosen)


def free_ports(count: int) -> list[int]:
    """Different free ports on loopback, without the ports of any `ReservedPorts`. Raises UserError if too few are free."""
    held: list[socket.socket] = []
    try:
        for port in random.sample(PORTS, len(PORTS)):
            probe = socket.socket()  # without SO_REUSEADDR, so that a reserved port counts as taken
            try:
                probe.bind((_HERE, port))
            except OSError:
                probe.close()
                continue
            held.append(probe)
            if len(held) == count:
                return [found.getsockname()[1] for found in held]
        raise UserError(
            Code.PORT_TAKEN, "no free ports are left on 127.0.0.1", "Set ONEFOLD_KAFKA_PORT and ONEFOLD_POSTGRES_PORT."
        )
    finally:
        for found in held:
            found.close()


class ReservedPorts:
    """Reserves ports for services that start later or restart: `free_ports` does not return a reserved port. Close after use.

    A reserved port is bound without listening. On Linux, a server can still listen there with SO_REUSEADDR, as Kafka,
    PostgreSQL and Python's servers do. On macOS no server could listen, so `keep` reserves no port.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def keep(self, ports: Iterable[int]) -> None:
        """Reserve further ports, without 0 and ports of running programs."""
        if not sys.platform.startswith("linux"):
            return
        for port in set(ports) - set(self._held) - {0}:
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((_HERE, port))
            except OSError:  # the service that listens there reports the error
                held.close()
            else:
                self._held[port] = held

    def close(self) -> None:
        """Release all ports."""
        while self._held:
            self._held.popitem()[1].close()


def of_stack(home: Path, public: Mapping[str, Any]) -> list[int]:
    """The ports of the services of a plan: the ports of `choose_ports`, and the metrics ports in the plan's `public`."""
    return [*vars(_last(home)).values(), *public.get("metrics", {}).values()]


def if_free(port: int) -> int:
    """The port, if a server can listen on `port`; else 0."""
    if not port:
        return 0
    try:
        socket.create_server((_HERE, port)).close()
    except OSError:
        return 0
    return port


def _file(home: Path) -> Path:
    return home / "run" / "ports.json"


def _last(home: Path) -> Ports:
    found = stack_state.load(_file(home))
    return Ports(**{one.name: found.get(one.name, 0) for one in fields(Ports)})


def _taken(ports: Mapping[str, int]) -> UserError:
    variables = {name: f"ONEFOLD_{name.upper()}_PORT" for name in ports}
    return UserError(
        Code.PORT_TAKEN,
        "; ".join(f"port {port} ({variables[name]}) is taken by {_listener(port)}" for name, port in ports.items()),
        f"Set another port, or for any free port: {' '.join(f'{variable}=0' for variable in variables.values())}.",
    )


def _listener(port: int) -> str:
    """The program that listens on the port, for a message. The name of another account's program is unknown."""
    with suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            if found.pid and found.status == psutil.CONN_LISTEN and found.laddr[1:] == (port,):
                return f"{psutil.Process(found.pid).name()} (pid {found.pid})"
    return "another program"
