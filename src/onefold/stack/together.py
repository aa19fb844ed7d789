"""Several processors, workers or auditors, as one command: processes, each started again alone when it ends, and one status
for all.

Several processes, because folding is work for one core, and so that what ends one of them leaves the others alone.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from onefold import status_file
from onefold.exit_codes import FAILED, OK, REFUSED, UNAVAILABLE, USAGE
from onefold.stack.metrics import VARIABLE
from onefold.stack.plan import AUDITOR_STOP_S, PROCESSOR_STOP_S, WORKER_STOP_S
from onefold.stack.service import of_command
from onefold.stack.supervisor import Managed, Supervisor, run

OUTPUT = Path("/dev/stdout")  # the output of the processes goes where this one's goes


# What a process of a pipeline ends with when another start would end likewise: that is for a person, or for whoever starts us.
FOR_ALL = (USAGE, REFUSED, UNAVAILABLE)

log = structlog.get_logger()


def process(processes: Mapping[str, int], instance: str, path: Path, metrics_port: int = 0) -> int:
    """Run so many processors of each domain until SIGTERM or SIGINT; several share its tasks. Their own status files lie beside
    `path`, and the first one's metrics are on that port, the second one's on the next, and so on; 0: none has any.

    Returns:
        The exit code. The processors of a single domain end together when one of them says that it makes no sense to go on,
        and this is what it ended with; of several domains each is tried again, for the others' sake.
    """
    services = [
        (domain if count == 1 else f"{domain}-{number}", domain, instance if count == 1 else f"{instance}-{number}")
        for domain, count in processes.items()
        for number in range(1, count + 1)
    ]
    made = [(name, ("process", domain, "--processes", "1", "--instance", member)) for name, domain, member in services]
    return _run(made, PROCESSOR_STOP_S, path, metrics_port, FOR_ALL if len(processes) == 1 else ())


def work(domains: Sequence[str], instance: str, path: Path, metrics_port: int = 0) -> None:
    """Run a worker of each domain, likewise."""
    made = [(domain, ("work", domain, "--instance", instance)) for domain in domains]
    _run(made, WORKER_STOP_S, path, metrics_port)


def audit(domains: Sequence[str], path: Path, metrics_port: int = 0) -> int:
    """Run an auditor of each domain, likewise. Returns 1 when one of them ended last with having found something, else 0."""
    made = [(domain, ("audit", domain)) for domain in domains]
    return _run(made, AUDITOR_STOP_S, path, metrics_port, told=(FAILED,))


class _Ended(Exception):
    """One of the processes ended for all. `code`: with what."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _run(
    made: Sequence[tuple[str, tuple[str, ...]]],
    stop_s: float,
    path: Path,
    metrics_port: int,
    for_all: Collection[int] = (),
    told: Collection[int] = (),
) -> int:
    """Until SIGTERM or SIGINT. One that ends by itself with a code of `for_all` ends all with it; one of `told`, with which a
    process has ended last when all are stopped, is passed on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Where the output is a file, what we say would else be written over what the processes have said.
    flags = fcntl.fcntl(sys.stdout.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETFL, flags | os.O_APPEND)
    services = [
        of_command(
            name,
            arguments,
            OUTPUT,
            beside(path, name),
            {VARIABLE: str(metrics_port and metrics_port + n)},
            stop_s=stop_s,
        )
        for n, (name, arguments) in enumerate(made)
    ]
    files = {service.name: Path(service.ready.target) for service in services}
    supervisor = Supervisor([services], lambda services: None)
    ends = dict.fromkeys(files, 0)

    def look() -> None:
        described = {managed.service.name: managed.describe() for managed in supervisor.stages[0]}
        # On a full disk the file gets stale, which a health check notices; the processes need none of it.
        with suppress(OSError):
            status_file.write(path, **summary(described, {name: _read(file) for name, file in files.items()}))
        for managed in supervisor.stages[0]:
            _tell(managed, ends)
            code = managed.exit_code
            if managed.state == "restarting" and code is not None and code in for_all:
                raise _Ended(code)

    try:
        run(supervisor, look)
    except _Ended as ended:
        with suppress(OSError):
            status_file.write(path, "stopped", f"a process ended with exit code {ended.code}", time.time())
        return ended.code
    last = (managed.exit_code for managed in supervisor.stages[0])
    return next((code for code in last if code is not None and code in told), OK)


def _tell(managed: Managed, ends: dict[str, int]) -> None:
    """Each end of a process once: who reads the log sees why there are two beginnings."""
    name = managed.service.name
    if managed.restarts > ends[name]:
        ends[name] = managed.restarts
        log.warning("a process ended", process=name, how=managed.detail)


def summary(services: dict[str, dict[str, Any]], statuses: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One status out of many: running only when every service is, and as old as the oldest of their own reports.

    Args:
        services: as `Managed.describe` gives them, by name.
        statuses: what each reports of itself, {} when it reported nothing.

    Returns:
        {"state", "detail", "updated_at"}, as `status_file.write` takes them.
    """
    reported = {name: _reported(entry, statuses[name]) for name, entry in services.items()}
    troubled = {name: words for name, words in reported.items() if words[0] != "running"}
    state = next(iter(troubled.values()))[0] if troubled else "running"
    detail = "; ".join(f"{name}: {words[1] or words[0]}" for name, words in (troubled or reported).items())
    detail = detail if services else status_file.IDLE
    # Without a service there is nothing to be late.
    oldest = min((status.get("updated_at", 0.0) for status in statuses.values()), default=time.time())
    return {"state": state, "detail": detail, "updated_at": oldest}


def _reported(entry: dict[str, Any], status: dict[str, Any]) -> tuple[str, str]:
    """A service's state in the words of a status file: what its supervisor knows comes first."""
    if entry["state"] == "restarting" or not status:
        last = f" ({status['detail']})" if status.get("state") == "stopped" else ""
        return "starting", f"{entry['detail']}{last}"
    return str(status["state"]), str(status["detail"])


def beside(path: Path, name: str) -> Path:
    """The status file of one of the processes, beside the one of all: a health check counts them."""
    return path.with_name(f"{path.stem}.{name}.json")


def _read(file: Path) -> dict[str, Any]:
    try:
        return status_file.read(file)
    except status_file.Newer as error:
        return {"state": "waiting", "detail": str(error), "updated_at": 0.0}
