"""Processes that are forks of one that has imported the product: real ones, which are killed and frozen as any other, and
which a test need not wait a second for.
"""

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
    """A process that runs a function of `tests.support.forked`. What it writes goes to the end of a file."""

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
        """Its exit code, minus a signal's number where one ended it; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code, as soon as it has ended."""
        self._process.join(timeout_s)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout_s or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _serve() -> None:
    """Start the fork server, unless it runs."""
    with chdir(ROOT):  # from where it imports
        forkserver.ensure_running()
