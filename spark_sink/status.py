"""The status file: what the sink is doing, for those who look from outside."""

import json
import os
import time
from pathlib import Path

# A reader may take a status that is older than a few seconds for a process that hangs.
_REFRESH_S = 0.5


class Status:
    """Writes {"state", "detail", "updated_at"}, whole or not at all. Without a file it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last: tuple[str, str] | None = None
        self._written_at = 0.0

    def say(self, state: str, detail: str) -> None:
        """`state` is starting, running or waiting; `detail` one sentence. Cheap enough to be called all the time."""
        now = time.time()
        if self._path is None or ((state, detail) == self._last and now - self._written_at < _REFRESH_S):
            return
        text = json.dumps({"state": state, "detail": detail, "updated_at": now})
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(self._path)
        self._last, self._written_at = (state, detail), now
