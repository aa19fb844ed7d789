"""The process of a service: started with a parent-death guard, identified by pid and start time, stopped by signals."""

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
from onefold.stack import service_environment
from onefold.stack.output import ServiceOutput
from onefold.stack.service import SupervisedService, is_ready
from onefold.waiting import until

GUARD = Path(__file__).with_name("parent_guard.py")
LOG_TAIL = 12  # lines of a log that an error message quotes
POLL_S = 0.05
# Time limits for writing the last output of an ended process to the log. A surviving grandchild may hold the pipe open.
FLUSH_S, FLUSH_LAST_S = 0.1, 2.0
KILL_S = 5.0  # SIGKILL takes effect after a running disk write


class Child:
    """The process of a service. Call `start` in the main thread: the parent-death guard watches the thread that started the
    process.
    """

    def __init__(self, service: SupervisedService) -> None:
        self.service = service
        self._process: subprocess.Popen[bytes] | None = None
        self._output: ServiceOutput | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the running process, else of the last process."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the program, with the output appended to the log, in files of a bounded size."""
        service = self.service
        if self._output is not None:
            self._output.close()
        self._output = ServiceOutput(service)
        owner = "-" if service.account is None else ":".join(map(str, service.account))
        guard = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(int(service.death_signal)), owner]
        with self._output.opened() as log:
            self._process = subprocess.Popen(
                [*guard, *service.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**service_environment.environment(service.inherits), **service.environment},
                cwd=service.folder,
                start_new_session=True,  # Ctrl-C reaches only the supervisor, which stops services in order
            )

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        code = self._process.poll() if self._process else None
        if self._output is not None:
            self._output.keep() if code is None else self._output.wait(FLUSH_S)
        return code

    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._written()

    def ask_to_stop(self) -> None:
        """Send the service's stop signal, without waiting."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.service.stop_signal)

    def stop(self) -> None:
        """Send the stop signal, wait up to the service's limit, then send SIGKILL."""
        self.ask_to_stop()
        try:
            if self._process is not None:
                self._process.wait(self.service.stop_s)
                self._written()
        except subprocess.TimeoutExpired:
            self.kill()

    def _written(self) -> None:
        """Wait until the last output is in the log."""
        if self._output is not None:
            self._output.wait(FLUSH_LAST_S)
            self._output.close()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the service is ready. Raises UserError with the end of the log if the process ends first, or after
        `timeout_s`.
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
    """The last lines of a log by `log_files.tail`, indented."""
    from onefold.stack import log_files  # imports structlog, which only a failed start needs

    return "\n".join(f"    {line[:300]}" for line in log_files.tail(log, lines)) or "    (empty)"


def birth(pid: int) -> float | None:
    """The start time of a process (unix seconds), or None if absent. Pid and start time identify a process for ever."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, OSError):  # OSError at the limit of open files
        return None


def end_known(pid: int, create_time: float, patience_s: float = 10.0, stop_signal: int = signal.SIGTERM) -> bool:
    """End the process with the pid and start time: `stop_signal`, and SIGKILL after `patience_s`.

    Returns whether the process ran. A zombie counts as ended: in a container without an init process, zombies stay.
    """
    if not stack_state.alive(pid, create_time):
        return False
    for number, limit_s in ((stop_signal, patience_s), (signal.SIGKILL, KILL_S)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if until(lambda: not stack_state.alive(pid, create_time), limit_s, POLL_S):
            break
    return True
