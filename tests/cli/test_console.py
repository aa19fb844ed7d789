"""What commands write to a terminal."""

import io
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Mapping

import pytest

from onefold.operate.progress import CLEAR, StageProgress
from tests.support.command_line import ROOT

# A table's style, a stage of work, and a line of a service's log.
SAYS = """
import structlog
from onefold.cli.console import console
from onefold.config import logs
from onefold.operate.progress import StageProgress
console().print("[bold red]styled")
progress = StageProgress()
progress.say("a stage: 1 of 2"); progress.done("a stage"); progress.clear()
logs.configure("human")
structlog.get_logger().warning("logged", reason="none")
"""
# What `up` says while it waits, twenty times a second: of many services, and then of fewer.
WAITS = """
from onefold.operate.progress import StageProgress
progress = StageProgress()
names = [f"processor-pipeline-{number}" for number in range(9)]
for _ in range(20): progress.say("waiting for: " + ", ".join(names))
progress.done("one is ready")
for _ in range(20): progress.say("waiting for: " + ", ".join(names))
for _ in range(20): progress.say("waiting for: " + names[0])
progress.clear()
"""
CLEARS = """
import os
from onefold.operate.progress import StageProgress
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
progress = StageProgress()
progress.say("reading: 1"); progress.clear(); progress.say("reading: 1")
"""


def on_a_terminal(program: str, columns: int = 0, environment: Mapping[str, str] | None = None) -> bytes:
    """All that is written to a terminal, on stdout and stderr. `columns`: 0 is one that does not know its size."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24 if columns else 0, columns))
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")
    }
    ran = subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", **(environment or {})},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while block := os.read(ours, 4096):
            said += block
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    assert ran.wait(30) == 0, said
    return said


@pytest.mark.parametrize(("environment", "escapes"), [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_leaves_no_escape(environment: dict[str, str], escapes: bool) -> None:
    """See no-color.org: an empty value does not count."""
    said = on_a_terminal(SAYS, environment=environment)
    assert all(word in said for word in (b"styled", b"a stage", b"logged"))
    assert (b"\x1b" in said) is escapes


@pytest.mark.parametrize("columns", [80, 60, 200, 0])
def test_a_line_that_changes_fits_the_terminal_and_is_written_when_it_changes(columns: int) -> None:
    """One that wraps could not be cleared. A terminal that does not know its size is taken for one of 80 columns."""
    said = on_a_terminal(WAITS, columns).decode()
    names = ", ".join(f"processor-pipeline-{number}" for number in range(9))
    room = (columns or 80) - 1
    whole, less = f"  waiting for: {names}"[:room], "  waiting for: processor-pipeline-0"
    assert [line.partition(" (")[0] for line in said.split(CLEAR)] == ["", whole, "  one is ready", whole, less, ""]


def test_what_is_cleared_is_written_again() -> None:
    """Else nothing would stand there. The width is that of stderr's terminal, wherever stdout goes."""
    said = on_a_terminal(CLEARS, 12).decode()
    assert said == f"{CLEAR}  reading: {CLEAR}{CLEAR}  reading: "


def test_elsewhere_each_stage_is_a_line() -> None:
    """However long: a file wraps nothing."""
    stream = io.StringIO()
    progress = StageProgress(stream)
    for number in range(3):
        progress.say(f"{'reading ' * 20}: {number}")
    assert stream.getvalue() == f"  {'reading ' * 20}: 0\n"
