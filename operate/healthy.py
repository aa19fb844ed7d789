"""Whether a service makes progress, for a container's health check: `python -m onefold.operate.healthy <status file>`.

The standard library only, and of Onefold what needs no more: it is asked every few seconds, in every container.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from onefold import status_file
from onefold.exit_codes import FAILED, OK

STALE_S = 10.0  # a service refreshes its status every second; one that is this late hangs, or is not there


def trouble(path: Path, now: float) -> str:
    """Why the service is not healthy, in a few words; "" when it is.

    Args:
        now: unix seconds.
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
    return "" if state == "running" else f"{state}: {detail}"


def main(arguments: list[str]) -> int:
    """OK when the service of the status file is running and the file is fresh; FAILED, and why, when not."""
    reason = trouble(Path(arguments[0]), time.time())
    sys.stdout.write(f"{reason or 'running'}\n")
    return FAILED if reason else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
