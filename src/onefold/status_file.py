"""The status file: how a service reports what it is doing to those outside, and how they read it.

The standard library only: a health check reads it every few seconds, in every container.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

#: Of the file's form. A file without one is of the first; a newer one is refused.
VERSION = 1
#: The detail of a service that is no process at all, as that of workers where no pipeline has jobs: it answers nowhere.
IDLE = "there is nothing to do"
#: In the detail of a sink, between the name of a pipeline that it does not land and the reason.
LEFT_OUT = " is left out: "
# A reader may take a status that is older than a few seconds for a process that hangs.
_REFRESH_S = 0.5


class Newer(Exception):
    """The file is of a newer Onefold; the text is one sentence."""


class Status:
    """A service's own status file. Without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last: tuple[str, str] | None = None
        self._written_at = 0.0

    def write(self, state: str, detail: str) -> None:
        """Write how it is now. Cheap enough to be called all the time: what has not changed is written twice a second at most.

        Args:
            state: starting, running, waiting or stopped.
            detail: one sentence.

        Raises:
            OSError: as on a full disk.
        """
        now = time.time()
        if self._path is None or ((state, detail) == self._last and now - self._written_at < _REFRESH_S):
            return
        write(self._path, state, detail, now)
        self._last, self._written_at = (state, detail), now


def write(path: Path, state: str, detail: str, updated_at: float) -> None:
    """Write a status, whole or not at all.

    Args:
        updated_at: unix seconds.

    Raises:
        OSError: as on a full disk.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(
        json.dumps({"version": VERSION, "state": state, "detail": detail, "updated_at": updated_at}), encoding="utf-8"
    )
    draft.replace(path)


def read(path: Path) -> dict[str, Any]:
    """`state`, `detail` and `updated_at` as they were written last; {} where nothing is, or nothing that makes sense.

    Raises:
        Newer: the file's version is not known here.
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
