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

# Below the range from which Linux takes ports for outgoing connections (32768 and up): such a port could be taken by any
# connection in the seconds in which a killed service starts again.
PORTS = range(21000, 32000)
_HERE = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The ports of a stack, on loopback. Their file has no version while it is of the first: 0.1.0 would forget the ports
    of a file with a field that it does not know.
    """

    kafka: int
    controller: int
    postgres: int
    dashboard: int = 0  # in files of an older Onefold there is none


def choose_ports(home: Path, **asked: int) -> Ports:
    """The ports of the stack in `home`. Without a number, or with 0, a service gets its last port if free, else a free port.

    Raises:
        UserError: a port that was asked for is taken, or a newer Onefold wrote the last ports.
    """
    if taken := {name: port for name, port in asked.items() if port and not if_free(port)}:
        raise _taken(taken)
    last, fresh = vars(_last(home)), iter(free_ports(len(fields(Ports))))
    chosen = {name: asked.get(name) or if_free(port) or next(fresh) for name, port in last.items()}
    stack_state.write(_file(home), chosen)
    return Ports(**chosen)


def free_ports(count: int) -> list[int]:
    """Ports on loopback that are free now and that nobody keeps, all different."""
    held: list[socket.socket] = []
    try:
        for port in random.sample(PORTS, len(PORTS)):
            probe = socket.socket()  # without SO_REUSEADDR, which would have what another one keeps
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


class Keeping:
    """Keeps ports for services that start later, or again: `free_ports` gives them to nobody else meanwhile. Who asks for one by
    its number still gets it. Close it after use.

    A kept port is bound and not listened on. On Linux, who listens with SO_REUSEADDR, as Kafka, PostgreSQL and Python's servers
    do, still can. Elsewhere nobody could, and nothing is kept.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def keep(self, ports: Iterable[int]) -> None:
        """Keep these too; of 0, and of one that another program has, nothing can be kept."""
        if not sys.platform.startswith("linux"):
            return
        for port in set(ports) - set(self._held) - {0}:
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((_HERE, port))
            except OSError:  # whoever is to listen on it says so
                held.close()
            else:
                self._held[port] = held

    def close(self) -> None:
        """Let go of all."""
        while self._held:
            self._held.popitem()[1].close()


def of_stack(home: Path, public: Mapping[str, Any]) -> list[int]:
    """The ports that the services of a plan were told, by what `choose_ports` chose and the plan's `public`."""
    return [*vars(_last(home)).values(), *public.get("metrics", {}).values()]


def if_free(port: int) -> int:
    """The port, when it can be listened on; else 0."""
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
    """The program that listens there. A program of another account has no name for us."""
    with suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            if found.pid and found.status == psutil.CONN_LISTEN and found.laddr[1:] == (port,):
                return f"{psutil.Process(found.pid).name()} (pid {found.pid})"
    return "another program"
