"""Folders and files readable only by their owner, under any umask: topics, tables, logs, passwords."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

FOLDER, FILE = 0o700, 0o600
# All users may traverse the folder and list nothing: PostgreSQL's own account has its folder in a data directory of root.
WALKED = 0o711
UMASK = 0o077  # for processes that create more files

# The stack's folders in its data directory.
FOLDERS = ("run", "logs", "kafka", "postgres", "checkpoints", "states")
# The marker of a data directory created by a stack (onefold.stack.data_directory).
MARKER = "onefold.home"
OURS = {*FOLDERS, "cache", "demo", "judge", "objects", "onefold.env", MARKER}


def secure(home: Path) -> None:
    """Create a stack's data directory and folders, and remove the rights of other users from existing folders.

    The function never adds rights to an existing folder: PostgreSQL's data location depends on whether PostgreSQL's account
    can traverse the data directory. A data directory with foreign files, such as a user's home folder, keeps its mode.
    Raises UserError if the data directory is the root folder, whose folders belong to the machine.
    """
    if home == home.parent:
        raise UserError(
            Code.FOLDER_UNUSABLE, f"ONEFOLD_HOME is {home}: the stack needs a folder of its own", exit_code=USAGE
        )
    mode = WALKED if os.geteuid() == 0 else FOLDER
    if not home.exists():
        _make(home, mode)
    elif {found.name for found in home.iterdir()} <= OURS:
        _narrow(home, mode)
    for name in FOLDERS:
        folder(home / name)


def folder(path: Path) -> None:
    """Create a folder for its owner alone, or restrict an existing folder. The target of a link keeps its mode."""
    if not path.exists():
        _make(path, FOLDER)
    elif not path.is_symlink():
        _narrow(path, FOLDER)


def write(path: Path, text: str) -> None:
    """Write a file readable only by its owner. An existing file is replaced and restricted."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE), "w", encoding="utf-8") as out:
        os.fchmod(out.fileno(), FILE)
        out.write(text)


def _make(path: Path, mode: int) -> None:
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
    except FileNotFoundError:  # a virtual file system, such as /proc
        raise UserError(
            Code.FOLDER_UNUSABLE, f"{path}: no folder can be made there", "Set ONEFOLD_HOME to another folder.", USAGE
        ) from None
    path.chmod(mode)  # the umask may have removed rights


def _narrow(path: Path, mode: int) -> None:
    found = path.stat().st_mode & 0o7777
    if found & ~mode:
        with suppress(PermissionError):  # a foreign owner's folder: the next access reports missing rights
            path.chmod(found & mode)
