"""The home of a stack: a marker file says that a stack of Onefold made it, and only such a home is wiped.

ONEFOLD_HOME may name any folder. A home keeps its marker from the first start until a wipe has removed everything.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from onefold.exit_codes import USAGE
from onefold.operate import private
from onefold.operate.errors import UserError
from onefold.stack.postgres import Postgres

# Only a starting stack fills these folders; services that run by hand fill some of the others.
_OF_THE_STACK = ("kafka", "logs", "postgres")
# A task's number, of files beside those in use `<task>.<number>`, and the lock of each (processor/io/disk.py).
_TASKS = tuple("[0-9]" * digits for digits in range(1, 5))
_STATES = tuple(
    f"*/{task}{beside}{lock}" for task in _TASKS for beside in ("", ".[0-9]", ".[0-9][0-9]") for lock in ("", ".lock")
)
# What the product writes, by the folders of a home. A part of a pattern is the name of one file or folder.
_MADE = {
    "checkpoints": ("sink-*",),
    "judge": ("*/*.checkpoint", "*/draft-*"),
    "kafka": ("data", "data.new", "tmp", "server.properties", "format.properties"),
    "logs": ("*.log", "*.log.before", "*.log.[1-9]", "*.log.before.[1-9]", "rebuild-*.json*"),
    "objects": ("objects", "marks", "unfinished"),
    "postgres": ("data", "data.new", "password", "password.new"),
    "states": _STATES,
    # The lock file stays: a new one would let a second holder in.
    "run": (
        *(
            f"{name}.json*"
            for name in ("stack", "plan", "ports", "audit", "audit.*", "process-*", "work-*", "*.status")
        ),
        "history.jsonl",
        "sink-*.turn",
    ),
}


def claim(home: Path) -> None:
    """Make the folders of a stack in `home` and mark it as the home of a stack, before a stack writes there.

    Raises:
        UserError: the home has files where the stack keeps its own, and no stack made them (exit code 2).
    """
    if not is_ours(home):
        for name in _OF_THE_STACK:
            if _is_filled(home, name):
                raise UserError(
                    f"{home / name} holds files, and no stack of Onefold has made them",
                    "Set ONEFOLD_HOME to a folder of its own.",
                    USAGE,
                )
    private.secure(home)
    marker = _marker(home)
    if not marker.exists():
        private.write(
            marker, "A stack of Onefold keeps its data in this folder. `onefold down --wipe` removes the data.\n"
        )


def is_ours(home: Path) -> bool:
    """Whether a stack of Onefold has made its home there, also one of 0.1.0, which wrote no marker."""
    return _marker(home).is_file() or _has_ports(home)


def refuse_foreign(home: Path) -> None:
    """Raise UserError (exit code 2) when `home` has what a wipe would remove and no stack of Onefold has run there."""
    if is_ours(home):
        return
    for name in _MADE:
        if name != "run" and _is_filled(home, name):
            raise UserError(
                f"{home} is not the data directory of a stack of Onefold, and nothing was removed",
                f"It has the folder {name} and no marker file {private.MARKER}; `onefold config show` prints the data directory.",
                USAGE,
            )


def wipe(home: Path) -> list[str]:
    """Remove what the stack has written into its home. Nothing in it may run.

    Links are not followed: what a link leads to stays, and so does the link.

    Returns:
        A sentence for each file that stays.
    """
    Postgres(home / "postgres", 0).wipe()
    stays = []
    for name, patterns in _MADE.items():
        folder = home / name
        if folder.is_symlink():
            stays.append(f"{folder} is a link, and stays with what it leads to")
            continue
        for pattern in patterns:
            _remove(folder, pattern.split("/"))
        _remove_empty(folder)
        stays += [_why_it_stays(path) for path in _files(folder) if path != home / "run" / "lock"]
    if not stays:
        _marker(home).unlink(missing_ok=True)
    return stays


def _remove(folder: Path, parts: list[str]) -> None:
    for path in _entries(folder):
        if path.is_symlink() or not fnmatchcase(path.name, parts[0]):
            continue
        if parts[1:]:
            _remove(path, parts[1:])
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    """The folder and those in it, as far as they are empty."""
    for path in _entries(folder):
        if path.is_dir() and not path.is_symlink():
            _remove_empty(path)
    if folder.is_dir() and not _entries(folder):
        folder.rmdir()


def _files(folder: Path) -> Iterator[Path]:
    for path in _entries(folder):
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _why_it_stays(path: Path) -> str:
    if path.is_symlink():
        return f"{path} is a link, and stays with what it leads to"
    return f"{path} stays: the stack did not write it, or it cannot be removed"


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_filled(home: Path, name: str) -> bool:
    """Whether a folder of the home has files; the libraries of a Kafka tool, which needs no stack, are none."""
    return any(path != home / "kafka" / "tmp" for path in _entries(home / name))


def _marker(home: Path) -> Path:
    return home / private.MARKER


def _has_ports(home: Path) -> bool:
    """Whether there is the file of ports that each start of 0.1.0 has written first."""
    try:
        found = json.loads((home / "run" / "ports.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and all(
        isinstance(found.get(name), int) for name in ("kafka", "controller", "postgres")
    )
