"""Real processes forked from one with the product already imported, so that a start takes far less than a second."""

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import chdir
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([forked.__name__])


class Process:
    """A process that runs a function of `tests.support.forked`, with output appended to a file."""

    def __init__(
        self, what: Callable[..., int], given: dict[str, Any], log: Path, environment: dict[str, str], folder: Path
    ) -> None:
        log.touch()
        _serve()
        self._process = CONTEXT.Process(target=forked.run, args=(what, given, log, environment, folder), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit code, or minus the number of the ending signal; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        self._process.join(timeout_s)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout_s or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _serve() -> None:
    """Start the fork server, unless already running."""
    with chdir(ROOT):  # the folder of its imports
        forkserver.ensure_running()
