"""The frame of a service's process: signals, status file, watch loop and exit code."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import structlog

from onefold.error_codes import CodedError, first_line
from onefold.exit_codes import OK
from onefold.status_file import Status

log = structlog.get_logger()


class ServiceProcess:
    """The process of a service, from the first signal handler to the exit code.

    The service runs inside a `with` block, in the main thread. An error with a code ends the block with a log line. Any other
    error is a bug and leaves the block, with its traceback.

    Attributes:
        stop: set by SIGTERM and SIGINT.
        status: the status file.
        exit_code: The exit code of the process, after the block.
    """

    def __init__(self, status_file: Path | None) -> None:
        self.stop = threading.Event()
        self.status = Status(status_file)
        self.exit_code = OK

    def __enter__(self) -> ServiceProcess:
        self.catch_signals()
        return self

    def catch_signals(self) -> None:
        """Set `stop` at SIGTERM and SIGINT. Call it again after a library has taken a signal for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            # In a thread: the handler may interrupt the main thread inside `stop.wait`, which holds the lock that `set` takes.
            signal.signal(number, lambda *_: _thread.start_new_thread(self.stop.set, ()))

    def watch(
        self, look: Callable[[], tuple[str, str]], interval_s: float = 0.0, halts: Callable[[], bool] = lambda: False
    ) -> None:
        """Write the state and the detail that `look` returns to the status file, again and again until `stop` is set, or `halts`
        says so.
        """
        while not self.stop.is_set() and not halts():
            self.status.write(*look())
            self.stop.wait(interval_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        detail = "asked to stop" if self.stop.is_set() else "ended by itself"
        if isinstance(error, CodedError):
            self.exit_code = error.exit_code
            log.error(first_line(error), code=str(error.code), **({"hint": error.hint} if error.hint else {}))
        with suppress(OSError):  # as on a full disk; the error of the service is the one to raise
            self.status.write("stopped", first_line(error) if error else detail)
        return isinstance(error, CodedError)
