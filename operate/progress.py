"""What a command says while it works: on a terminal one line that changes, elsewhere one line a stage. Always on
stderr.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

CLEAR = "\r\x1b[K"
WIDTH = 110  # longer lines would wrap, and a wrapped line cannot be cleared


class Progress:
    """Stages of work. `say` is transient, `done` stays."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lively = self._stream.isatty() and not os.environ.get("NO_COLOR")  # what changes a line are escapes
        self._stage = ""
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """What is happening now, as in "fetching jars: 3 of 51". Away from a terminal only a new stage is printed."""
        stage = text.partition(":")[0]
        if self._lively:
            self._write(f"{CLEAR}  {text[:WIDTH]}")
        elif stage != self._stage:
            self._write(f"  {text}\n")
        self._stage = stage

    def done(self, text: str) -> None:
        """What is finished, with the seconds since the command began."""
        self._write(f"{CLEAR if self._lively else ''}  {text} ({time.monotonic() - self._began:.1f} s)\n")

    def clear(self) -> None:
        """Takes the transient line away."""
        if self._lively:
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
