"""Progress messages of a command: on a terminal one changing line, elsewhere one line for each stage. Always on stderr."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from typing import TextIO

CLEAR = "\r\x1b[K"
_MARGIN = "  "


class StageProgress:
    """Progress by stages. `say` is transient, `done` stays."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lively = self._stream.isatty() and not os.environ.get("NO_COLOR")  # a changing line needs escapes
        self._stage = ""
        self._shown = ""
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Show the current action, as in "fetching jars: 3 of 51". Without a terminal only a new stage is printed."""
        stage = text.partition(":")[0]
        if self._lively:
            self._show(f"{_MARGIN}{text}"[: self._room()])
        elif stage != self._stage:
            self._write(f"{_MARGIN}{text}\n")
        self._stage = stage

    def done(self, text: str) -> None:
        """Print a finished action, with the seconds since the command began."""
        self._shown = ""
        self._write(f"{CLEAR if self._lively else ''}{_MARGIN}{text} ({time.monotonic() - self._began:.1f} s)\n")

    def clear(self) -> None:
        """Remove the transient line."""
        if self._lively:
            self._shown = ""
            self._write(CLEAR)

    def _show(self, line: str) -> None:
        """Write only a changed line: frequent repeats would flicker, and fill recordings of the terminal."""
        if line != self._shown:
            self._shown = line
            self._write(f"{CLEAR}{line}")

    def _room(self) -> int:
        """The maximum length of a line: a longer line would wrap, and cannot be cleared. The last column stays free, because
        some terminals wrap after a character there.
        """
        # The size of the stream's terminal now: stdout may be a file, and the window size may change.
        columns = 0
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._stream.fileno()).columns
        return (columns or shutil.get_terminal_size().columns) - 1

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
