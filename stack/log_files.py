"""The logs of the embedded stack's services, for a reader: the last lines of each, and what is written from now on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from onefold.exit_codes import USAGE
from onefold.operate import logs
from onefold.operate.errors import UserError

_SUFFIX = ".log"
# Read at once; some hundred lines.
_BLOCK = 64 * 1024
_JAVA_FRAME = re.compile(r"\s+at [\w.$/]+\(")  # a line of a stack trace, which helps nobody outside the log
# Of a log around a moment: as much as a person looks at. A whole stack trace is one line of it.
_AROUND_LINES, _AROUND_CHARACTERS = 8, 300


def files(home: Path, service: str = "") -> dict[str, Path]:
    """The logs of the stack that runs in `home`, or that ran there last, by the service's name; of one service when it is
    named.

    Raises:
        UserError: there is none; with exit code 2 when there is none of this service, and others are.
    """
    found = {path.name.removesuffix(_SUFFIX): path for path in sorted((home / "logs").glob(f"*{_SUFFIX}"))}
    if not found:
        raise UserError(f"no stack has run in {home}", "`onefold up` starts one.")
    if not service:
        return found
    if service not in found:
        raise UserError(f"there is no log of {service}", f"There are: {', '.join(found)}.", USAGE)
    return {service: found[service]}


def around(log: Path, at: int) -> list[str]:
    """The lines of a log before and after that many bytes, a few of each, as people read them; [] where there is none any more.
    Never raises.
    """
    try:
        with log.open("rb") as file:
            begin = file.seek(max(0, at - _BLOCK))
            before, after = file.read(at - begin), file.read(_BLOCK)
    except OSError:
        return []
    said = _readable(before.splitlines()[-_AROUND_LINES:])[-_AROUND_LINES:]
    said += _readable(after.splitlines()[:_AROUND_LINES])[:_AROUND_LINES]
    return [line[:_AROUND_CHARACTERS] for line in said]


def tail(log: Path, lines: int) -> list[str]:
    """So many of the last lines of a log, as people read them, without the frames of Java's stack traces; [] where there is no
    such file.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _BLOCK))
            found = file.read().splitlines()
    except OSError:
        return []
    return [line for line in _readable(found) if not _JAVA_FRAME.match(line)][-lines:]


class Reader:
    """Reads the logs of a stack, whole lines only, from where they end when it is made. What is not UTF-8 is shown with
    replacement characters.

    Raises:
        UserError: see `files`.
    """

    def __init__(self, home: Path, service: str = "") -> None:
        self._home = home
        self._service = service
        self._open = {name: path.open("rb") for name, path in files(home, service).items()}
        self._began = {name: _after_last_line(file) for name, file in self._open.items()}

    @property
    def services(self) -> list[str]:
        """Whose logs there are."""
        return list(self._open)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()

    def last(self, number: int) -> Iterator[tuple[str, str]]:
        """(service, line) for so many of the last lines of each before the end that this reader found."""
        for name, file in self._open.items():
            here = file.tell()
            begin, text = self._began[name], b""
            while begin > 0 and text.count(b"\n") <= number:
                size = min(_BLOCK, begin)
                begin = file.seek(begin - size)
                text = file.read(size) + text
            file.seek(here)
            for line in text.splitlines(keepends=True)[-number:] if number else []:
                yield name, _shown(line)

    def more(self) -> Iterator[tuple[str, str]]:
        """(service, line) for each line that has come since the last call. A service that is new, and a log that was begun
        anew, as by the next `up`, are read from their first line.
        """
        for name, file in self._open.items():
            yield from _read_on(name, file)
        for name, path in self._now().items():
            before = self._open.get(name)
            if before is None or not _is_still(before, path):
                try:
                    self._open[name] = path.open("rb")
                except FileNotFoundError:  # it was put aside this very moment
                    continue
                if before is not None:
                    before.close()
                yield from _read_on(name, self._open[name])

    def _now(self) -> dict[str, Path]:
        try:
            return files(self._home, self._service)
        except UserError:  # between two runs there is none
            return {}


def _after_last_line(file: BinaryIO) -> int:
    """Goes to the end of the last whole line; what comes behind it is shown when it is whole."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _BLOCK))
    unfinished = len(file.read(min(end, _BLOCK)).rpartition(b"\n")[2])
    return file.seek(end - unfinished)


def _read_on(name: str, file: BinaryIO) -> Iterator[tuple[str, str]]:
    while block := file.readline(_BLOCK):
        if not block.endswith(b"\n") and len(block) < _BLOCK:
            file.seek(-len(block), os.SEEK_CUR)  # the rest of it is yet to be written
            return
        yield name, _shown(block)


def _readable(lines: Iterable[bytes]) -> list[str]:
    return [part for line in lines for part in logs.readable(_shown(line))]


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _is_still(file: BinaryIO, path: Path) -> bool:
    """Whether the open file is what has this name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return True  # and nothing has come in its place
