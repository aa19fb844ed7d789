"""The metrics port of each service: the same port while the stack runs, and after the next start if the port is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.stack.ports import free_ports, if_free
from onefold.stack.service import SupervisedService

# Prefixes of the services with a metrics port. The dashboard serves metrics on the port of the page.
MEASURED = ("processor-", "sink-", "worker-", "auditor-")
VARIABLE = "ONEFOLD_METRICS_PORT"
PORT_MAX = 65535

Stages = Sequence[Sequence[SupervisedService]]


def free_of(ports: Mapping[str, int]) -> dict[str, int]:
    """The free ports among `ports`, the ports of the last start."""
    return {name: port for name, port in ports.items() if if_free(port)}


def placed(
    stages: Stages, public: Mapping[str, Any], first: int
) -> tuple[list[list[SupervisedService]], dict[str, Any]]:
    """The services with the metrics port in the environment, and `public` with the ports by service name as "metrics".

    Args:
        public: known ports in "metrics" stay. Without "metrics", an older Onefold wrote the plan: the result is unchanged,
            because new ports would restart all services.
        first: the lowest port; 0: any free ports.

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
