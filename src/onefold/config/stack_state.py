"""The files of <home>/run that outlive a command, stack.json above all: what runs, as the supervisor last wrote it. Pids are
always paired with birth times.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from onefold.config import private_files
from onefold.config.errors import UserError
from onefold.error_codes import Code

# Of all these files. Readers leave out what they do not know, so what is only added needs no new number. A file without one
# is of version 1, as 0.1.0 wrote them.
VERSION = 1


def path(home: Path) -> Path:
    """Where the state of the stack in `home` is written."""
    return home / "run" / "stack.json"


def write(file: Path, value: dict[str, Any]) -> None:
    """Replaces a JSON file in one step: a reader sees the old or the new, never half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    private_files.write(draft, json.dumps(value, indent=1))  # it may hold the database's password
    draft.replace(file)


def load(file: Path) -> dict[str, Any]:
    """The object in a JSON file, {} when there is none. Raises UserError when a newer Onefold wrote it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    version = found.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise UserError(
            Code.NEWER_VERSION,
            f"{file} was written by a newer Onefold, in version {version}, and this one knows versions up to {VERSION}",
            "Use the newer one, or stop the stack with it and take the file away.",
        )
    return found


def read(home: Path) -> dict[str, Any]:
    """The last written state, {} when there is none. Raises UserError when a newer Onefold wrote it."""
    return load(path(home))


def read_running(home: Path) -> dict[str, Any]:
    """The state, or {} when the supervisor that wrote it is gone."""
    found = read(home)
    return found if found and alive(found.get("supervisor_pid", 0), found.get("create_time", 0.0)) else {}


def alive(pid: int, create_time: float) -> bool:
    """Whether the process with this pid and birth time is there (a zombie is not)."""
    import psutil  # a service that is told its servers asks for no process, and its start is for the next event to wait for

    try:
        process = psutil.Process(pid)
        return process.create_time() == create_time and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False
