"""The data directory of a stack. `wipe` removes data only from a directory with the marker file of a stack.

ONEFOLD_HOME may name any folder. The marker stays from the first start until a wipe has removed everything.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from onefold.config import private_files
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.stack.postgres import PostgresServer

# Only a starting stack fills these folders; a service without a stack may fill the folders below.
_OF_THE_STACK = ("kafka", "logs", "postgres")
_KNOWN = (
    "kafka",
    "postgres",
    "supervisor",
    "migrate",
    "dashboard",
    "prepare",
    "warm",
)  # "prepare" and "warm" are from earlier releases
_NUMBERED = ("processor", "worker", "sink", "auditor", "rebuild")
_SERVICES = (*_KNOWN, *(f"{name}-*" for name in _NUMBERED))
_LOGS = tuple(f"{service}.log{end}" for service in _SERVICES for end in ("", ".[1-9]"))
_LOGS_BEFORE = tuple(f"{service}.log.before{end}" for service in _SERVICES for end in ("", ".[1-9]"))
# State folders `<task>`, further folders `<task>.<number>`, and the lock file of each folder (processor/io/state_files.py).
_TASKS = tuple(f"*/{'[0-9]' * digits}{beside}" for digits in range(1, 5) for beside in ("", ".[0-9]", ".[0-9][0-9]"))
_ROCKS = "CURRENT IDENTITY LOCK LOG LOG.old.[0-9]* MANIFEST-[0-9]* OPTIONS-[0-9]* [0-9]*.log [0-9]*.sst rocksdict-config.json"
_STATES = tuple(task + end for task in _TASKS for end in (".lock", *(f"/{file}" for file in _ROCKS.split())))
_OPTIONS = "log4j2.properties"
# Files of a sink. A wipe removes `_OPTIONS` last, because the file identifies a sink's folder. `notes` and `rehearsal-*` are
# from earlier releases.
_SINK = (
    *(f"{name}/" for name in ("tmp", "local", "notes", "rehearsal-*", "sink-*.[0-9]*")),
    "spark.log*",
    "spark.out",
    _OPTIONS,
)
# The files of a stack, as patterns by the folders of the data directory. A part of a pattern is the name of a file or folder,
# `name:file` a folder that has the file, and `**` any path of object names. A final slash: a folder with all content.
_MADE = {
    "checkpoints": tuple(f"sink-*:{_OPTIONS}/{name}" for name in _SINK),
    "judge": ("*/*.checkpoint", "*/draft-*"),
    "kafka": ("data/", "data.new/", "tmp/", "server.properties", "format.properties"),
    "logs": (*_LOGS, *_LOGS_BEFORE, "rebuild-*.json*"),
    "objects": ("objects/**", "marks/**", "unfinished/tmp*"),
    "postgres": ("data/", "data.new/", "password", "password.new", "passwords"),
    "states": _STATES,
    # The lock file stays: a new one would let a second holder in.
    "run": (
        *(
            f"{name}.json*"
            for name in ("stack", "plan", "ports", "audit", "audit.*", "process-*", "work-*", "*.status")
        ),
        "history.jsonl",
        "sink-*.turn",  # of earlier releases
    ),
}
# An object store makes the three folders together; a folder that lacks one is not an object store.
_STORE = ("objects", "marks", "unfinished")
_OBJECT = re.compile(r"[a-z0-9]+")


def claim(home: Path) -> None:
    """Make the folders of a stack in `home` and write the marker file, before a stack writes there.

    Raises:
        UserError: foreign files are in a folder that the stack uses (exit code 2).
    """
    if not is_ours(home):
        for name in _OF_THE_STACK:
            if _is_filled(home, name):
                raise UserError(
                    Code.DATA_DIRECTORY,
                    f"{home / name} holds files, and no stack of Onefold has made them",
                    "Set ONEFOLD_HOME to a folder of its own.",
                    USAGE,
                )
    private_files.secure(home)
    marker = _marker(home)
    if not marker.exists():
        private_files.write(
            marker, "A stack of Onefold keeps its data in this folder. `onefold down --wipe` removes the data.\n"
        )


def is_ours(home: Path) -> bool:
    """Whether `home` is the data directory of a stack, including stacks of 0.1.0, which wrote no marker."""
    return _marker(home).is_file() or _has_ports(home)


def refuse_foreign(home: Path) -> None:
    """Raise UserError (exit code 2) if a wipe would remove files of `home`, and no stack has run there."""
    if is_ours(home):
        return
    for name in _MADE:
        if name != "run" and _is_filled(home, name):
            raise UserError(
                Code.DATA_DIRECTORY,
                f"{home} is not the data directory of a stack of Onefold, and nothing was removed",
                f"It has the folder {name} and no file {private_files.MARKER}; `onefold config` prints the data directory.",
                USAGE,
            )


def contents(home: Path) -> list[str]:
    """Names of the data that a wipe of `home` removes, for the confirmation prompt."""
    named = {
        "topics of the embedded Kafka": _is_there(home / "kafka" / "data"),
        "tables of the embedded PostgreSQL": _is_there(PostgresServer(home / "postgres", 0).data),
        **{name: any(_made(home, name)) for name in ("states", "objects", "checkpoints", "logs")},
        "checkpoints of `verify`": any(_made(home, "judge")),
    }
    return [name for name, is_there in named.items() if is_there]


def wipe(home: Path) -> list[str]:
    """Remove the files of a stack from the data directory. The stack must be down.

    Follows no links: a link and the link's target stay.

    Returns:
        A sentence for each file that stays.
    """
    PostgresServer(home / "postgres", 0).wipe()
    stays = []
    for name in _MADE:
        folder = home / name
        if folder.is_symlink():
            stays.append(f"{folder} is a link, and stays with what it leads to")
            continue
        for path in _made(home, name):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        _remove_empty(folder)
        stays += [_why_it_stays(path) for path in _files(folder) if path != home / "run" / "lock"]
    if not stays:
        _marker(home).unlink(missing_ok=True)
    return stays


def logs(home: Path) -> tuple[list[Path], list[Path]]:
    """The log files of the last run, and of the run before."""
    folder = home / "logs"
    kinds = (_LOGS, _LOGS_BEFORE)
    logs, before = ([path for pattern in kind for path in _matching(folder, [pattern])] for kind in kinds)
    return logs, before


def _made(home: Path, name: str) -> Iterator[Path]:
    """The paths that a stack has written into a folder of the data directory. A yielded folder includes all content."""
    folder = home / name
    if folder.is_symlink() or (name == "objects" and not all((folder / part).is_dir() for part in _STORE)):
        return
    for pattern in _MADE[name]:
        yield from _matching(folder, pattern.split("/"))


def _matching(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The paths below `folder` that match the parts of a pattern, without links."""
    name, _, sign = parts[0].partition(":")
    for path in _entries(folder):
        if path.is_symlink() or not (_OBJECT.fullmatch(path.name) if name == "**" else fnmatchcase(path.name, name)):
            continue
        if name == "**":
            if path.is_dir():
                yield from _matching(path, parts)
            else:
                yield path
        elif parts[1:] == [""]:
            if path.is_dir():
                yield path
        elif parts[1:]:
            if (path / sign).exists():
                yield from _matching(path, parts[1:])
        elif not path.is_dir():
            yield path


def _remove_empty(folder: Path) -> None:
    """Remove empty folders below `folder`, and `folder` itself if empty."""
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


def _is_there(folder: Path) -> bool:
    return folder.is_dir() and not any(path.is_symlink() for path in (folder, folder.parent))


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_filled(home: Path, name: str) -> bool:
    """Whether a folder of the data directory has files. Libraries of a Kafka tool do not count: a tool runs without a stack."""
    tool = home / "kafka" / "tmp"
    return any(path != tool or not all(map(_is_library, _files(tool))) for path in _entries(home / name))


def _is_library(path: Path) -> bool:
    """Whether the file is a library that a JVM has unpacked (snappy, zstd, lz4), or the lock file of a library."""
    return any(fnmatchcase(path.name, f"*lib*{suffix}") for suffix in (".so", ".so.lck", ".dylib", ".dylib.lck"))


def _marker(home: Path) -> Path:
    return home / private_files.MARKER


def _has_ports(home: Path) -> bool:
    """Whether the ports file exists, which 0.1.0 wrote first at each start."""
    try:
        found = json.loads((home / "run" / "ports.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and all(
        isinstance(found.get(name), int) for name in ("kafka", "controller", "postgres")
    )
