"""The status file, with which a service reports its state to commands and health checks.

The module imports only the standard library, because a health check reads the file every few seconds in every container.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

#: The version of the file's format. A file without a version has version 1, and a newer version is refused.
VERSION = 1
#: The detail of a service without work and without a port for health checks, such as workers if no pipeline has jobs.
IDLE = "there is nothing to do"
#: The text in a sink's detail between the name of a skipped pipeline and the reason.
LEFT_OUT = " is left out: "
# A reader may regard a process with a status older than a few seconds as hanging.
_REFRESH_S = 0.5


class Newer(Exception):
    """The file is from a newer Onefold. The text is a sentence."""


class Status:
    """A service's own status file. Without a path, `write` has no effect."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last: tuple[str, str] | None = None
        self._written_at = 0.0

    def write(self, state: str, detail: str) -> None:
        """Write the present state. Frequent calls are cheap: an unchanged state is written at most twice a second.

        Args:
            state: starting, running, waiting or stopped.
            detail: A sentence.

        Raises:
            OSError: The file cannot be written, for instance on a full disk.
        """
        now = time.time()
        if self._path is None or ((state, detail) == self._last and now - self._written_at < _REFRESH_S):
            return
        write(self._path, state, detail, now)
        self._last, self._written_at = (state, detail), now


def write(path: Path, state: str, detail: str, updated_at: float) -> None:
    """Write a status atomically.

    Args:
        updated_at: The time in seconds since 1970.

    Raises:
        OSError: The file cannot be written, for instance on a full disk.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(
        json.dumps({"version": VERSION, "state": state, "detail": detail, "updated_at": updated_at}), encoding="utf-8"
    )
    draft.replace(path)


def read(path: Path) -> dict[str, Any]:
    """The last written `state`, `detail` and `updated_at`; {} for a missing or invalid file.

    Raises:
        Newer: The file has a newer version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = int(found.get("version", 1))
        if version > VERSION:
            raise Newer(f"{path.name} is of a newer Onefold: its version is {version}, and {VERSION} is known here")
        return {
            "state": str(found["state"]),
            "detail": str(found.get("detail", "")),
            "updated_at": float(found.get("updated_at", 0.0)),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
