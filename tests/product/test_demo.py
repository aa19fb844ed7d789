"""The demo, interrupted: whenever that happens, nothing is left running, and the next one works."""

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.command_line import Onefold
from tests.support.needs import first_of
from tests.support.waiting import eventually


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.parametrize("moment", first_of(["producing events", "waiting for"]))
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    """While the services start, and in the middle of the work."""
    onefold = Onefold(tmp_path)
    demo = onefold.start("demo", "--events", "20000")
    said = tmp_path / "demo.out"
    eventually(lambda: moment in said.read_text(encoding="utf-8"), 120, f"the demo says {moment!r}")
    state = tmp_path / "demo" / "run" / "stack.json"
    eventually(
        lambda: state.exists() and json.loads(state.read_text(encoding="utf-8"))["services"],
        60,
        "the supervisor says what runs",
    )
    running = json.loads(state.read_text(encoding="utf-8"))
    pids = [running["supervisor_pid"], *(service["pid"] for service in running["services"].values() if service["pid"])]
    demo.send_signal(signal.SIGINT)

    assert demo.wait(90) == 130
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 20, "all its processes are gone")
    assert "Traceback" not in said.read_text(encoding="utf-8")
    named = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [line for line in named if any(str(tmp_path) in word for word in line)] == []
