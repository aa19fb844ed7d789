"""Whether a service gets on, for a container's health check: `python -m onefold.operate.healthy <status file> [port]`.

That its status is fresh says that the process is there, and no more: with a port, /healthz is asked as well. The standard
library only, and of Onefold what needs no more: it is asked every few seconds, in every container.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from onefold import status_file
from onefold.exit_codes import FAILED, OK

STALE_S = 10.0  # a service refreshes its status every second; one that is this late hangs, or is not there
ANSWER_S = 3.0  # a thread of its own answers, in milliseconds


def trouble(path: Path, now: float, port: int = 0, answer_s: float = ANSWER_S) -> str:
    """Why the service is not healthy, in a few words; "" when it is.

    Args:
        now: unix seconds.
        port: where the first of its processes answers for its health, and the next ones on the next; 0: nobody is asked.
        answer_s: how long each process may take for its answer.
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
    """How many the service is: where they are several, their own status files lie beside its."""
    return max(1, len(list(path.parent.glob(f"{path.stem}.*.json"))))


def _unwell(port: int, answer_s: float) -> str:
    """What /healthz says is wrong, or that it says nothing, which it does whenever its process runs; else ""."""
    from http.client import HTTPConnection, HTTPException  # dear, and only those need it that are asked for more

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
    """OK when the service of the status file is running, the file is fresh, and what is asked at the port, if there is one, is
    well; FAILED, and why, when not.
    """
    path, *port = arguments
    reason = trouble(Path(path), time.time(), *map(int, port))
    sys.stdout.write(f"{reason or 'running'}\n")
    return FAILED if reason else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
