"""Run a command's work in a process that is killed with SIGKILL at one step."""

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from tests.support import forked
from tests.support.forks import Process


def dies(work: str, domain: str, settings: dict[str, Any], after: str, *, inputs: bool = False) -> None:
    """Replay or drop, with one transaction per record, or reset, until the process is killed after the step `after`, without
    cleanup."""
    given: dict[str, Any] = {"domain": domain, "settings": settings, "dies_after": after}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        if work == "reset":
            process = Process(forked.reset, {**given, "inputs": inputs}, log, environment, Path.cwd())
        else:
            process = Process(getattr(forked, work), given, log, environment, Path.cwd())
        try:
            assert process.wait(90) == -signal.SIGKILL, f"killed after {after}: {log.read_text(encoding='utf-8')}"
        finally:
            process.kill()
