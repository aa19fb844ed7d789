"""What a command says while it works: on a terminal one line that changes, elsewhere one line a stage. Always on
stderr.
"""

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
    """Stages of work. `say` is transient, `done` stays."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lively = self._stream.isatty() and not os.environ.get("NO_COLOR")  # what changes a line are escapes
        self._stage = ""
        self._shown = ""
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """What is happening now, as in "fetching jars: 3 of 51". Away from a terminal only a new stage is printed."""
        stage = text.partition(":")[0]
        if self._lively:
            self._show(f"{_MARGIN}{text}"[: self._room()])
        elif stage != self._stage:
            self._write(f"{_MARGIN}{text}\n")
        self._stage = stage

    def done(self, text: str) -> None:
        """What is finished, with the seconds since the command began."""
        self._shown = ""
        self._write(f"{CLEAR if self._lively else ''}{_MARGIN}{text} ({time.monotonic() - self._began:.1f} s)\n")

    def clear(self) -> None:
        """Takes the transient line away."""
        if self._lively:
            self._shown = ""
            self._write(CLEAR)

    def _show(self, line: str) -> None:
        """Who waits says the same many times a second: that would flicker, and fill what records the terminal."""
        if line != self._shown:
            self._shown = line
            self._write(f"{CLEAR}{line}")

    def _room(self) -> int:
        """How long a line may be: a longer one would wrap, and a wrapped line cannot be cleared. The last column stays free:
        some terminals wrap as soon as it is written to.
        """
        # Of the terminal that is written to, at this moment: stdout may be a file, and a window may change.
        columns = 0
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._stream.fileno()).columns
        return (columns or shutil.get_terminal_size().columns) - 1

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
