"""What commands write to a terminal."""

import os
import pty
import subprocess
import sys

import pytest

from tests.support.command_line import ROOT

# A table's style, a stage of work, and a line of a service's log.
SAYS = """
import structlog
from onefold.cli.console import console
from onefold.operate import logs
from onefold.operate.progress import Progress
console().print("[bold red]styled")
progress = Progress()
progress.say("a stage: 1 of 2"); progress.done("a stage"); progress.clear()
logs.configure("human")
structlog.get_logger().warning("logged", reason="none")
"""


def on_a_terminal(**environment: str) -> bytes:
    """All that is written to a terminal, on stdout and stderr."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    ran = subprocess.Popen(
        [sys.executable, "-P", "-c", SAYS],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", **environment},
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
    said = on_a_terminal(**environment)
    assert all(word in said for word in (b"styled", b"a stage", b"logged"))
    assert (b"\x1b" in said) is escapes
