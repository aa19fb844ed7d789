"""What a sink waits for before it begins to land."""

import subprocess
import sys
from pathlib import Path

import pytest

from onefold.operate import state
from onefold.stack.gate import STANDS_BY, Gate
from tests.support.command_line import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("sinks-that-wait")

TAKES_A_TURN = """
import sys
from pathlib import Path
from onefold.stack.gate import Gate
gate = Gate(Path(sys.argv[1]), turn="1")
print(gate(), flush=True)
sys.stdin.read()
"""


def test_it_opens_when_the_task_was_done(tmp_path: Path) -> None:
    gate = Gate(tmp_path, after="prepare")
    assert gate() == ("starting", "waiting for prepare"), "nothing has begun yet"
    state.write(state.path(tmp_path), {"services": {"prepare": {"was_ready": False}}})
    assert gate() == ("starting", "waiting for prepare")
    state.write(state.path(tmp_path), {"services": {"prepare": {"was_ready": True}}})
    assert gate() is None
    state.path(tmp_path).unlink()
    assert gate() is None, "it stays open"


def test_without_anything_to_wait_for_it_is_open(tmp_path: Path) -> None:
    assert Gate(tmp_path)() is None


def test_one_has_its_turn_until_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", TAKES_A_TURN, str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT / "src")}
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "None\n"
        gate = Gate(tmp_path, turn="1")
        assert gate() == ("running", STANDS_BY)
        assert Gate(tmp_path, turn="2")() is None, "that is another one's"
    finally:
        holder.kill()
        holder.communicate()
    eventually(lambda: gate() is None, 5, "the turn is there for the next one")
    assert Gate(tmp_path, turn="1")() == ("running", STANDS_BY), "and it has it"
