"""The JSON files in the folder `run` of the data directory, mainly stack.json: the running services as last written by the
supervisor. Each pid has the creation time of its process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from onefold.config import private_files
from onefold.config.errors import UserError
from onefold.error_codes import Code

# The format version of all these files. Readers ignore unknown fields, so an added field needs no new version. A file without a
# version has version 1.
VERSION = 1


def path(home: Path) -> Path:
    """The path of the stack's state in the data directory `home`."""
    return home / "run" / "stack.json"


def write(file: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file atomically: a reader sees the old or the new content, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    private_files.write(draft, json.dumps(value, indent=1))  # the value may contain the database's password
    draft.replace(file)


def load(file: Path) -> dict[str, Any]:
    """The object in a JSON file, {} without a valid object. Raises UserError if a newer Onefold wrote the file."""
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
    """The last written state, {} without a state. Raises UserError if a newer Onefold wrote the state."""
    return load(path(home))


def read_running(home: Path) -> dict[str, Any]:
    """The state, or {} if its supervisor no longer runs."""
    found = read(home)
    return found if found and alive(found.get("supervisor_pid", 0), found.get("create_time", 0.0)) else {}


def alive(pid: int, create_time: float) -> bool:
    """Whether the process with this pid and creation time runs. A zombie does not run."""
    import psutil  # services with configured servers need no process check, and the import would delay their start

    try:
        process = psutil.Process(pid)
        return process.create_time() == create_time and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False
