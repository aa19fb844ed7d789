"""A command on a terminal of its own: what it writes is kept, and keys are pressed."""

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Self

from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
CTRL_C = b"\x03"
# The terminal becomes the one by which the command is controlled, or Ctrl-C would be a character as any other.
_STARTER = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'onefold.cli.main', *sys.argv[1:]])"
)


class Terminal:
    """`onefold` with these arguments on a terminal of that size; killed at the end when it still runs."""

    def __init__(
        self, environment: dict[str, str], cwd: Path, *arguments: str, size: tuple[int, int] = (24, 80)
    ) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        kept = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _STARTER, *arguments],
            stdin=slave, stdout=slave, stderr=slave, cwd=cwd, start_new_session=True,
            env={"TERM": "xterm-256color", **kept, **environment, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        os.close(slave)
        self._written = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._master)

    @property
    def written(self) -> str:
        """All that was written so far, with its escapes."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                piece = os.read(self._master, 65_536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            self._written += piece
        return self._written.decode()

    def lines(self) -> list[str]:
        """The same as lines of text."""
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.written).replace("\r", "").split("\n")

    def shows(self, text: str, deadline_s: float = 30) -> None:
        """Wait until that was written."""

        def there() -> bool:
            assert text in self.written or self.process.poll() is None, f"it has ended: {self.written}"
            return text in self.written

        eventually(there, deadline_s, f"{text!r} is on the terminal")

    def press(self, keys: bytes) -> None:
        """As a person does."""
        os.write(self._master, keys)

    def ended(self) -> int:
        """Wait for its end; the exit code."""

        # What nobody reads would hold it up.
        eventually(lambda: self.written is not None and self.process.poll() is not None, 30, "it has ended")
        return self.process.wait()
