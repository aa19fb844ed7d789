"""Several processors, workers or auditors, as one command: a process a domain, each started again when it ends, and one status
for all.

A process each, because folding is work for one core, and so that what ends one domain's process leaves the others alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onefold import status_file
from onefold.stack.plan import AUDITOR_STOP_S, PROCESSOR_STOP_S, WORKER_STOP_S
from onefold.stack.service import Ready, Service
from onefold.stack.supervisor import Supervisor, run

OUTPUT = Path("/dev/stdout")  # the output of the processes goes where this one's goes


def process(domains: Sequence[str], instance: str, path: Path, metrics_port: int = 0) -> None:
    """Run the processors of `domains` until SIGTERM or SIGINT. Their own status files lie beside `path`, and the first one's
    metrics are on that port, the second one's on the next, and so on; 0: none has any.
    """
    _run("process", PROCESSOR_STOP_S, domains, ("--instance", instance), path, metrics_port)


def work(domains: Sequence[str], instance: str, path: Path, metrics_port: int = 0) -> None:
    """Run the workers of `domains`, likewise."""
    _run("work", WORKER_STOP_S, domains, ("--instance", instance), path, metrics_port)


def audit(domains: Sequence[str], path: Path, metrics_port: int = 0) -> None:
    """Run the auditors of `domains`, likewise."""
    _run("audit", AUDITOR_STOP_S, domains, (), path, metrics_port)


def _run(
    verb: str, stop_s: float, domains: Sequence[str], options: Sequence[str], path: Path, metrics_port: int
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    services = [
        _service(verb, stop_s, domain, options, _beside(path, domain), metrics_port and metrics_port + number)
        for number, domain in enumerate(domains)
    ]
    files = {service.name: Path(service.ready.target) for service in services}
    supervisor = Supervisor([services], lambda services: None)

    def publish() -> None:
        described = {managed.service.name: managed.describe() for managed in supervisor.stages[0]}
        # On a full disk the file gets stale, which a health check notices; the processes need none of it.
        with suppress(OSError):
            status_file.write(path, **summary(described, {name: _read(file) for name, file in files.items()}))

    run(supervisor, publish)


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
    # Without a service there is nothing to be late.
    oldest = min((status.get("updated_at", 0.0) for status in statuses.values()), default=time.time())
    return {"state": state, "detail": detail, "updated_at": oldest}


def _reported(entry: dict[str, Any], status: dict[str, Any]) -> tuple[str, str]:
    """A service's state in the words of a status file: what its supervisor knows comes first."""
    if entry["state"] == "restarting" or not status:
        last = f" ({status['detail']})" if status.get("state") == "stopped" else ""
        return "starting", f"{entry['detail']}{last}"
    return str(status["state"]), str(status["detail"])


def _service(verb: str, stop_s: float, domain: str, options: Sequence[str], status: Path, metrics_port: int) -> Service:
    return Service(
        name=domain,
        argv=(sys.executable, "-P", "-m", "onefold.cli.main", verb, domain, *options),
        log=OUTPUT,
        ready=Ready("status_file", str(status)),
        environment={"ONEFOLD_STATUS_FILE": str(status), "ONEFOLD_METRICS_PORT": str(metrics_port)},
        stop_s=stop_s,
    )


def _beside(path: Path, domain: str) -> Path:
    return path.with_name(f"{path.stem}.{domain}.json")


def _read(file: Path) -> dict[str, Any]:
    try:
        return status_file.read(file)
    except status_file.Newer as error:
        return {"state": "waiting", "detail": str(error), "updated_at": 0.0}
