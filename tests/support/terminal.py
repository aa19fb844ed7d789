"""A command on a pseudo-terminal, whose output is recorded, and which gets key presses."""

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
# Make the terminal the controlling one, because otherwise Ctrl-C is an ordinary character.
_STARTER = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'onefold.cli.main', *sys.argv[1:]])"
)


class Terminal:
    """`onefold` on a terminal of that size; killed at the end if still running."""

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
        """All output so far, with escape sequences."""
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
        """Output as lines of text, without escape sequences."""
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.written).replace("\r", "").split("\n")

    def shows(self, text: str, deadline_s: float = 30) -> None:
        """Wait until the text was written."""

        def there() -> bool:
            assert text in self.written or self.process.poll() is None, f"it has ended: {self.written}"
            return text in self.written

        eventually(there, deadline_s, f"{text!r} is on the terminal")

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def ended(self) -> int:
        """Wait for the end; returns the exit code."""

        # Read the output meanwhile, because a full terminal would block the command.
        eventually(lambda: self.written is not None and self.process.poll() is not None, 30, "it has ended")
        return self.process.wait()
