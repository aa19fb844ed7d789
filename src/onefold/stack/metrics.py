"""Which port each service's metrics are on: the same one as long as the stack runs, and the next time, where it is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.stack.ports import free_ports, if_free
from onefold.stack.service import SupervisedService

# What the services are called that have metrics on a port of their own; the dashboard has them on its page's.
MEASURED = ("processor-", "sink-", "worker-", "auditor-")
VARIABLE = "ONEFOLD_METRICS_PORT"
PORT_MAX = 65535

Stages = Sequence[Sequence[SupervisedService]]


def free_of(ports: Mapping[str, int]) -> dict[str, int]:
    """Of the ports of last time those that nobody has taken since."""
    return {name: port for name, port in ports.items() if if_free(port)}


def placed(
    stages: Stages, public: Mapping[str, Any], first: int
) -> tuple[list[list[SupervisedService]], dict[str, Any]]:
    """The same services, each told its port, and `public` with the ports by name, as "metrics".

    Args:
        public: what has "metrics" keeps those ports. What has none is of an older Onefold, and is left as it is: its services
            would all be started again.
        first: the lowest port to take; 0: any free ones.

    Raises:
        UserError: there are not enough free ports.
    """
    if "metrics" not in public:
        return [list(stage) for stage in stages], dict(public)
    known: dict[str, int] = public["metrics"]
    names = [service.name for stage in stages for service in stage if service.name.startswith(MEASURED)]
    new = [name for name in names if name not in known]
    fresh = _from(first, set(known.values())) if first else iter(free_ports(len(new)) if new else ())
    ports = {name: known[name] if name in known else next(fresh) for name in names}
    told = [[_told(service, ports.get(service.name)) for service in stage] for stage in stages]
    return told, {**public, "metrics": ports}


def _told(service: SupervisedService, port: int | None) -> SupervisedService:
    if port is None:
        return service
    return replace(service, environment={**service.environment, VARIABLE: str(port)})


def _from(first: int, taken: set[int]) -> Iterator[int]:
    for port in count(first):
        if port > PORT_MAX:
            raise UserError(
                Code.PORT_TAKEN, f"there are not enough free ports from {first} on", f"Choose a lower {VARIABLE}, or 0."
            )
        if port not in taken and if_free(port):
            yield port
