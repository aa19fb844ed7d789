"""The logs of the embedded stack's services, for a reader: the last lines of each log, and new lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from onefold.config import logs
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

_SUFFIX = ".log"
# Files of a log; the names end with a digit.
FILES_MAX = 10
# Bytes of a read; some hundred lines.
_BLOCK = 64 * 1024
_JAVA_FRAME = re.compile(r"\s+at [\w.$/]+\(")  # a line of a stack trace, useless outside the log
# Lines around a moment, as many as a person reads. A whole stack trace is a single line.
_AROUND_LINES, _AROUND_CHARACTERS = 8, 300


def files(home: Path, service: str = "") -> dict[str, Path]:
    """The logs of the last stack in `home`, by the service's name; with `service`, only that log.

    Raises:
        UserError: no log exists; exit code 2 if only the log of `service` is missing.
    """
    found = {path.name.removesuffix(_SUFFIX): path for path in sorted((home / "logs").glob(f"*{_SUFFIX}"))}
    if not found:
        raise UserError(Code.STACK_STOPPED, f"no stack has run in {home}", "`onefold up` starts one.")
    if not service:
        return found
    if service not in found:
        raise UserError(Code.NAME_UNKNOWN, f"there is no log of {service}", f"There are: {', '.join(found)}.", USAGE)
    return {service: found[service]}


def around(log: Path, at: int, number: int = 0) -> list[str]:
    """A few lines before and after byte `at` of a log, formatted for people; [] if the file is gone. Never raises.

    Args:
        number: the inode of the file at that time; 0: the newest file of the log.
    """
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(file) for file in _chain(log)]
            file = next(one for one in files if number in (0, os.fstat(one.fileno()).st_ino))
            begin = file.seek(max(0, at - _BLOCK))
            before, after = file.read(at - begin), file.read(_BLOCK)
    except (OSError, StopIteration):
        return []
    said = _readable(before.splitlines()[-_AROUND_LINES:])[-_AROUND_LINES:]
    said += _readable(after.splitlines()[:_AROUND_LINES])[:_AROUND_LINES]
    return [line[:_AROUND_CHARACTERS] for line in said]


def tail(log: Path, lines: int) -> list[str]:
    """The last `lines` lines of a log, formatted for people, without the frames of Java's stack traces; [] if the file is
    missing.
    """
    text = b""
    for file in _chain(log):
        with file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _BLOCK))
            text = file.read() + text if len(text) < _BLOCK else text
    found = text.splitlines()
    return [line for line in _readable(found) if not _JAVA_FRAME.match(line)][-lines:]


class StackLogReader:
    """Reads whole lines from the logs of a stack, from the end of the logs at construction. Bytes that are not UTF-8 become
    replacement characters.

    Raises:
        UserError: see `files`.
    """

    def __init__(self, home: Path, service: str = "") -> None:
        self._home = home
        self._service = service
        self._open: dict[str, BinaryIO] = {name: path.open("rb") for name, path in files(home, service).items()}
        self._began = {name: _after_last_line(file) for name, file in self._open.items()}

    @property
    def services(self) -> list[str]:
        """The names of the services that have a log."""
        return list(self._open)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()

    def last(self, number: int) -> Iterator[tuple[str, str]]:
        """(service, line) for the last `number` lines of each log before the end at construction."""
        for name, file in self._open.items():
            here = file.tell()
            found = _last_lines(file, self._began[name], number)
            file.seek(here)
            chain = _chain(self._home / "logs" / f"{name}{_SUFFIX}")
            for older in chain[_place(file, chain) + 1 :]:
                found = _last_lines(older, older.seek(0, os.SEEK_END), number - len(found)) + found
            for other in chain:
                other.close()
            for line in found:
                yield name, _shown(line)

    def more(self) -> Iterator[tuple[str, str]]:
        """(service, line) for each new line since the last call. Reads the log of a new service, and a replaced log (after the
        next `up`), from the first line.
        """
        for name, file in self._open.items():
            yield from _read_on(name, file)
        for name, path in self._now().items():
            before = self._open.get(name)
            if before is None or not _is_still(before, path):
                yield from self._go_on(name, before, _chain(path))

    def _go_on(self, name: str, before: BinaryIO | None, chain: list[BinaryIO]) -> Iterator[tuple[str, str]]:
        """The lines from the file that was the newest at the last call to the newest file."""
        newer = chain[: _place(before, chain)]
        for file in chain[len(newer) :]:
            file.close()
        if not newer:  # the writer has just renamed the file, and not yet begun a new file
            return
        if before is not None:
            yield from _read_on(name, before, is_whole=True)
            before.close()
        for file in reversed(newer[1:]):
            yield from _read_on(name, file, is_whole=True)
            file.close()
        self._open[name] = newer[0]
        yield from _read_on(name, newer[0])

    def _now(self) -> dict[str, Path]:
        try:
            return files(self._home, self._service)
        except UserError:  # no log exists between two runs
            return {}


def _after_last_line(file: BinaryIO) -> int:
    """Seek to the end of the last whole line, and return the position. An unfinished line is read after its end is written."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _BLOCK))
    unfinished = len(file.read(min(end, _BLOCK)).rpartition(b"\n")[2])
    return file.seek(end - unfinished)


def _read_on(name: str, file: BinaryIO, *, is_whole: bool = False) -> Iterator[tuple[str, str]]:
    """(service, line) from the file's position on. is_whole: the file is final, and the last line may lack a line end."""
    while block := file.readline(_BLOCK):
        if not is_whole and not block.endswith(b"\n") and len(block) < _BLOCK:
            file.seek(-len(block), os.SEEK_CUR)  # the line is unfinished
            return
        yield name, _shown(block)


def _chain(log: Path) -> list[BinaryIO]:
    """The open files of a log, the newest first, each once: the writer may rename files during the call."""
    found: list[BinaryIO] = []
    for path in (log, *(log.with_name(f"{log.name}.{number}") for number in range(1, FILES_MAX))):
        with suppress(OSError):
            file = path.open("rb")
            if _place(file, found) < len(found):
                file.close()
            else:
                found.append(file)
    return found


def _place(file: BinaryIO | None, chain: list[BinaryIO]) -> int:
    """The index of the file in `chain`; the length of `chain` if absent."""
    if file is None:
        return len(chain)
    mine = os.fstat(file.fileno())
    same = (place for place, other in enumerate(chain) if os.path.samestat(mine, os.fstat(other.fileno())))
    return next(same, len(chain))


def _last_lines(file: BinaryIO, end: int, number: int) -> list[bytes]:
    begin, text = end, b""
    while begin > 0 and text.count(b"\n") <= number:
        size = min(_BLOCK, begin)
        begin = file.seek(begin - size)
        text = file.read(size) + text
    return text.splitlines(keepends=True)[-number:] if number > 0 else []


def _readable(lines: Iterable[bytes]) -> list[str]:
    return [part for line in lines for part in logs.readable(_shown(line))]


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _is_still(file: BinaryIO, path: Path) -> bool:
    """Whether the open file still has the name `path`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return True  # no new file replaces the old file
