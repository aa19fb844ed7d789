"""The path of a service's output to the log: a pipe, and a process that writes bounded files (`log_writer`)."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from onefold.stack import service_environment
from onefold.stack.service import SupervisedService

WRITER = Path(__file__).with_name("log_writer.py")
_DEVICES = Path("/dev")  # /dev/stdout is the command's output, and no log file
_LEFT: list[subprocess.Popen[bytes]] = []  # writers of ended services with a running child process


class ServiceOutput:
    """The output of a service's process. A new writer replaces a killed one without loss, because the pipe stays open."""

    def __init__(self, service: SupervisedService) -> None:
        self._log, self._limit, self._files = service.log, service.log_bytes, service.log_files
        self._pipe = -1
        self._writer: subprocess.Popen[bytes] | None = None

    def opened(self) -> BinaryIO:
        """The process's end of the pipe; close the descriptor after the process's start."""
        if self._log.parent == _DEVICES:
            return self._log.open("ab")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.open("ab").close()  # an unwritable log fails before the service starts
        self._pipe, end = os.pipe()
        try:
            self._start()
        except BaseException:
            os.close(end)
            self.close()
            raise
        return os.fdopen(end, "wb")

    def keep(self) -> None:
        """Start a writer if none runs."""
        if self._writer is not None and self._writer.poll() is not None:
            self._start()

    def wait(self, seconds: float) -> None:
        """Wait until all output is written, at most `seconds`."""
        if self._writer is not None:
            with suppress(subprocess.TimeoutExpired):
                self._writer.wait(seconds)

    def close(self) -> None:
        """Leave the rest to the writer."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        _LEFT[:] = [left for left in _LEFT if left.poll() is None]
        if self._writer is not None and self._writer.poll() is None:
            _LEFT.append(self._writer)
        self._writer = None

    def _start(self) -> None:
        arguments = (str(self._log.absolute()), str(self._limit), str(self._files))
        self._writer = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WRITER), *arguments],
            stdin=self._pipe,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=service_environment.environment(service_environment.POSTGRES),
            start_new_session=True,  # Ctrl-C in the terminal must not end the writer before the services' last lines
        )
