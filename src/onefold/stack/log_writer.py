"""Write the output of a service to the log, and begin a new file when the log is too large.

Run as `python -I -S log_writer.py <log> <bytes> <files>` with the service's output as standard input. Each service has a
writer, which reads to the end of the output, even if the supervisor was killed. A log of five files is `x.log`, the newest, and
`x.log.1` to `x.log.4`. A new file begins at the start of a line.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

BLOCK = 64 * 1024  # the capacity of a pipe on Linux
# A longer line is cut where the file has reached the limit times this factor.
_LONGEST = 2


class LogFiles:
    """The files of a log.

    Args:
        limit: size in bytes; a file ends with the line that reaches the limit.
        files: the number of files, including the newest.
    """

    def __init__(self, path: Path, limit: int, files: int) -> None:
        self._path, self._limit, self._files = path, limit, files
        self._fd = -1
        self._lost = 0
        self._is_at_line_start = True

    def write(self, block: bytes) -> None:
        """Append the block. After failed writes, the next successful write begins with a note of the number of lost bytes."""
        try:
            if self._lost:
                begin = "" if self._is_at_line_start else "\n"  # the last line may be incomplete
                note = f"{begin}onefold: {self._lost} bytes of this log could not be written\n".encode()
                while note:
                    note = note[self._append(note) :]
                self._lost = 0
            while block:
                size = self._opened()
                if size >= self._limit and (self._is_at_line_start or size >= _LONGEST * self._limit):
                    self._begin()
                    size = self._opened()
                room = max(1, self._limit - size)
                end = len(block) if len(block) <= room else block.find(b"\n", room - 1) + 1 or len(block)
                block = block[self._append(block[:end]) :]
        except OSError:
            self._lost += len(block)

    def _opened(self) -> int:
        """Open the newest file and return the size. The writer of an earlier process of the service may have begun the file."""
        with suppress(FileNotFoundError):
            if self._fd >= 0 and os.path.samestat(os.fstat(self._fd), self._path.stat()):
                return os.fstat(self._fd).st_size
        self._close()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fstat(self._fd).st_size

    def _append(self, block: bytes) -> int:
        """Append the block, and return the number of written bytes."""
        self._opened()
        written = os.write(self._fd, block)
        self._is_at_line_start = block[written - 1 : written] == b"\n"
        return written

    def _begin(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # until the file is closed
        if self._is_newest():
            names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files))]
            for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
                with suppress(FileNotFoundError):
                    newer.replace(older)
        self._close()

    def _is_newest(self) -> bool:
        """Whether the open file has the log's name. Another writer may have renamed the file, and not yet begun a new file."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def main(arguments: list[str]) -> None:
    """Write standard input to the log until the end. Ignores stop signals, because a stopping service may still print."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    path, limit, files = arguments
    writer = LogFiles(Path(path), int(limit), int(files))
    while block := os.read(0, BLOCK):
        writer.write(block)


if __name__ == "__main__":
    main(sys.argv[1:])
