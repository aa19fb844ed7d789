"""Folders and files that nobody but their owner reads, whatever the umask is: topics, tables, logs, passwords."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

FOLDER, FILE = 0o700, 0o600
# Others may walk through and read nothing: PostgreSQL's own account has its folder in a home of root's.
WALKED = 0o711
UMASK = 0o077  # of processes that make more files

# What the stack keeps in its home, and what else of ours may lie there.
FOLDERS = ("run", "logs", "kafka", "postgres", "checkpoints", "states")
# In a home that a stack has made (onefold.stack.homes).
MARKER = "onefold.home"
OURS = {*FOLDERS, "cache", "demo", "judge", "objects", "onefold.env", MARKER}


def secure(home: Path) -> None:
    """Makes the home of a stack and its folders, and takes from everybody else what an older Onefold gave.

    Rights are only taken, never given, from what is there: whether PostgreSQL's account may walk to a home decides where
    its data lies. A home that also holds other things, as a user's own folder, keeps its mode; only ours in it is closed.
    Raises UserError for a home in which our folders would be the machine's own.
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
    """Makes a folder that is its owner's alone; one that is there becomes so. What a link leads to is the user's affair."""
    if not path.exists():
        _make(path, FOLDER)
    elif not path.is_symlink():
        _narrow(path, FOLDER)


def write(path: Path, text: str) -> None:
    """Writes a file that only its owner reads, also where one of that name was there."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE), "w", encoding="utf-8") as out:
        os.fchmod(out.fileno(), FILE)
        out.write(text)


def _make(path: Path, mode: int) -> None:
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
    except FileNotFoundError:  # a file system that is none of files, as /proc
        raise UserError(
            Code.FOLDER_UNUSABLE, f"{path}: no folder can be made there", "Set ONEFOLD_HOME to another folder.", USAGE
        ) from None
    path.chmod(mode)  # whatever the umask left of it


def _narrow(path: Path, mode: int) -> None:
    found = path.stat().st_mode & 0o7777
    if found & ~mode:
        with suppress(PermissionError):  # somebody else's: what may be done in it, the next step finds out
            path.chmod(found & mode)
