"""Check the health of a service, for a container's health check: `python -m onefold.operate.healthy <status file> [port]`.

A fresh status file shows only that the process runs. With a port, the check also requests /healthz. The module imports only the
standard library and small parts of Onefold, because every container runs it every few seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from onefold import status_file
from onefold.exit_codes import FAILED, OK

STALE_S = 10.0  # a service refreshes its status every second; a status of this age means a hanging or ended process
ANSWER_S = 3.0  # a separate thread answers, in milliseconds


def trouble(path: Path, now: float, port: int = 0, answer_s: float = ANSWER_S) -> str:
    """Why the service is unhealthy, in a few words; "" if healthy.

    Args:
        now: unix seconds.
        port: the health port of the first process; other processes use the next ports; 0: no request.
        answer_s: the time-out for each process.
    """
    try:
        status = status_file.read(path)
    except status_file.Newer as error:
        return str(error)
    if not status:
        return "it has reported nothing yet"
    state, detail, age = status["state"], status["detail"], now - status["updated_at"]
    if age > STALE_S:
        return f"it has reported nothing for {age:.0f} s; its last state was {state}: {detail}"
    if state != "running":
        return f"{state}: {detail}"
    if not port or detail == status_file.IDLE:
        return ""
    return next(filter(None, (_unwell(each, answer_s) for each in range(port, port + _processes(path)))), "")


def _processes(path: Path) -> int:
    """The number of processes of the service: each of several processes has its own status file in the same folder."""
    return max(1, len(list(path.parent.glob(f"{path.stem}.*.json"))))


def _unwell(port: int, answer_s: float) -> str:
    """The fault that /healthz reports, or a missing answer, which shows a fault too; else ""."""
    from http.client import HTTPConnection, HTTPException  # a slow import, needed only for requests

    connection = HTTPConnection("127.0.0.1", port, timeout=answer_s)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").partition("\n")[0]
    except (OSError, HTTPException) as error:
        return f"127.0.0.1:{port} does not say how it is: {error or type(error).__name__}"
    finally:
        connection.close()
    return "" if answer.status == 200 else text or f"127.0.0.1:{port} answers {answer.status}"


def main(arguments: list[str]) -> int:
    """Returns OK if the service is running, its status file is fresh, and each requested port reports health. Else prints the
    reason and returns FAILED.
    """
    path, *port = arguments
    reason = trouble(Path(path), time.time(), *map(int, port))
    sys.stdout.write(f"{reason or 'running'}\n")
    return FAILED if reason else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
