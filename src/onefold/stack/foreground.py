"""Several processors, workers or auditors as one command with one status file. Each process is restarted alone.

Separate processes, because a Python process uses one core, and because a failure ends a single process.
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

OUTPUT = Path("/dev/stdout")  # the processes write to the command's standard output


# Exit codes after which a restart would fail again: the command exits with the same code, for the user or the orchestrator.
FOR_ALL = (USAGE, REFUSED, UNAVAILABLE)

log = structlog.get_logger()


def process(processes: Mapping[str, int], instance: str, path: Path, metrics_port: int = 0) -> int:
    """Run processors until SIGTERM or SIGINT. Processors of one pipeline share the tasks.

    Args:
        processes: the number of processors of each pipeline.
        path: the common status file; the status files of the processes are in the same folder.
        metrics_port: the port of the first processor's metrics, plus 1 for each further processor; 0: no metrics.

    Returns:
        The exit code. With a single pipeline, a processor that exits with a code of `FOR_ALL` stops all processors, and the
        command returns the code. With several pipelines the supervisor restarts every processor.
    """
    services = [
        (domain if count == 1 else f"{domain}-{number}", domain, instance if count == 1 else f"{instance}-{number}")
        for domain, count in processes.items()
        for number in range(1, count + 1)
    ]
    made = [(name, ("process", domain, "--processes", "1", "--instance", member)) for name, domain, member in services]
    return _run(made, PROCESSOR_STOP_S, path, metrics_port, FOR_ALL if len(processes) == 1 else ())


def work(domains: Sequence[str], instance: str, path: Path, metrics_port: int = 0) -> None:
    """Run a worker of each pipeline until SIGTERM or SIGINT."""
    made = [(domain, ("work", domain, "--instance", instance)) for domain in domains]
    _run(made, WORKER_STOP_S, path, metrics_port)


def audit(domains: Sequence[str], path: Path, metrics_port: int = 0) -> int:
    """Run a continuous verifier of each pipeline until SIGTERM or SIGINT.

    Returns 1 if the last exit code of a verifier was 1 (a mismatch), else 0.
    """
    made = [(domain, ("audit", domain)) for domain in domains]
    return _run(made, AUDITOR_STOP_S, path, metrics_port, told=(FAILED,))


class _Ended(Exception):
    """A process exited with a code that stops all processes: `code`."""

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
    """Run the commands under a supervisor until SIGTERM or SIGINT, and return the exit code.

    Args:
        made: name and arguments of each command.
        for_all: exit codes of a single process that stop all processes.
        told: exit codes to return, if a process had one as the last exit code at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without O_APPEND, the command would overwrite the output of the processes in a file.
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
        # On a full disk the status file becomes stale, and the health check fails. The processes do not need the file.
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
    """Log each exit of a process once, so that the log explains the second start."""
    name = managed.service.name
    if managed.restarts > ends[name]:
        ends[name] = managed.restarts
        log.warning("a process ended", process=name, how=managed.detail)


def summary(services: dict[str, dict[str, Any]], statuses: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The common status: running if every service is running, and as old as the oldest status file.

    Args:
        services: the results of `Managed.describe`, by name.
        statuses: the content of each status file, by name; {} for a missing file.

    Returns:
        {"state", "detail", "updated_at"}, the arguments of `status_file.write`.
    """
    reported = {name: _reported(entry, statuses[name]) for name, entry in services.items()}
    troubled = {name: words for name, words in reported.items() if words[0] != "running"}
    state = next(iter(troubled.values()))[0] if troubled else "running"
    detail = "; ".join(f"{name}: {words[1] or words[0]}" for name, words in (troubled or reported).items())
    detail = detail if services else status_file.IDLE
    # Without a service the status is never stale.
    oldest = min((status.get("updated_at", 0.0) for status in statuses.values()), default=time.time())
    return {"state": state, "detail": detail, "updated_at": oldest}


def _reported(entry: dict[str, Any], status: dict[str, Any]) -> tuple[str, str]:
    """State and detail of a service for the status file. The supervisor's state has precedence over the service's report."""
    if entry["state"] == "restarting" or not status:
        last = f" ({status['detail']})" if status.get("state") == "stopped" else ""
        return "starting", f"{entry['detail']}{last}"
    return str(status["state"]), str(status["detail"])


def beside(path: Path, name: str) -> Path:
    """The status file of a process, in the folder of the common status file: a health check counts the files."""
    return path.with_name(f"{path.stem}.{name}.json")


def _read(file: Path) -> dict[str, Any]:
    try:
        return status_file.read(file)
    except status_file.Newer as error:
        return {"state": "waiting", "detail": str(error), "updated_at": 0.0}
