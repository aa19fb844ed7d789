"""One running service: behind a parent-death guard, known by pid and birth time, stopped with patience and then without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.stack import inherited
from onefold.stack.output import Output
from onefold.stack.service import Service, is_ready
from onefold.waiting import until

GUARD = Path(__file__).with_name("parent_guard.py")
LOG_TAIL = 12  # lines of a log that an error message quotes
POLL_S = 0.05
# For what an ended process has printed to be in its log. A process that it started may live on and hold the pipe open.
FLUSH_S, FLUSH_LAST_S = 0.1, 2.0
KILL_S = 5.0  # the kernel needs none; a process in the middle of a disk write may


class Child:
    """A service's process. Start it from the main thread: Linux watches the thread that started the process, not its parent."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Output | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the running, or else of the last, process."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the program; its output goes to the end of its log, in files of a bounded size."""
        service = self.service
        if self._output is not None:
            self._output.close()
        self._output = Output(service)
        owner = "-" if service.account is None else ":".join(map(str, service.account))
        guard = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(int(service.death_signal)), owner]
        with self._output.opened() as log:
            self._process = subprocess.Popen(
                [*guard, *service.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**inherited.environment(service.inherits), **service.environment},
                cwd=service.folder,
                start_new_session=True,  # a Ctrl-C in the terminal is for the one who stops services in order
            )

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        code = self._process.poll() if self._process else None
        if self._output is not None:
            self._output.keep() if code is None else self._output.wait(FLUSH_S)
        return code

    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._written()

    def ask_to_stop(self) -> None:
        """Sends the service's stop signal and does not wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.service.stop_signal)

    def stop(self) -> None:
        """Asks, waits up to the service's limit, then kills."""
        self.ask_to_stop()
        try:
            if self._process is not None:
                self._process.wait(self.service.stop_s)
                self._written()
        except subprocess.TimeoutExpired:
            self.kill()

    def _written(self) -> None:
        """Wait until its last words are in its log."""
        if self._output is not None:
            self._output.wait(FLUSH_LAST_S)
            self._output.close()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Returns when the service is ready. Raises UserError with the end of its log when it ends before, or takes
        too long.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.poll() is not None
            ready, detail = (False, "") if ended else is_ready(self.service.ready)
            if ready:
                return
            if ended or time.monotonic() > deadline:
                what = "ended while starting" if ended else f"was not ready after {timeout_s:.0f} s {detail}".rstrip()
                raise UserError(
                    Code.SERVICE_FAILED,
                    f"{self.service.name} {what}",
                    f"Its log, {self.service.log}, ends with:\n{tail(self.service.log)}",
                )
            time.sleep(POLL_S)


def tail(log: Path, lines: int = LOG_TAIL) -> str:
    """The last lines of a log, indented, as `log_files.tail` has them."""
    from onefold.stack import log_files  # imports structlog, which nobody needs whose services all start

    return "\n".join(f"    {line[:300]}" for line in log_files.tail(log, lines)) or "    (empty)"


def birth(pid: int) -> float | None:
    """When the process was born (unix seconds), or None if there is none: with the pid it names a process for ever."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, OSError):  # the latter where no more files can be opened
        return None


def end_known(pid: int, create_time: float, patience_s: float = 10.0, stop_signal: int = signal.SIGTERM) -> bool:
    """Ends the process that has this pid and birth time and no other: `stop_signal`, and SIGKILL after `patience_s`.

    Returns whether there was one. A zombie counts as ended: where nobody reaps orphans, it would stay for ever.
    """
    if not stack_state.alive(pid, create_time):
        return False
    for number, limit_s in ((stop_signal, patience_s), (signal.SIGKILL, KILL_S)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if until(lambda: not stack_state.alive(pid, create_time), limit_s, POLL_S):
            break
    return True
