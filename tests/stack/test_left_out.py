"""Who refuses to start: `up` waits for it no longer, and the supervisor tries it further."""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, USAGE
from onefold.operate.progress import Progress
from onefold.stack import control
from onefold.stack.plan import Plan
from onefold.stack.service import Ready, Service
from onefold.stack.supervisor import Managed
from tests.support.coded import raises
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # starts a process a test

# Refuses until somebody has mended what it refuses.
REFUSES = """[ -e mended ] || exit {code}; echo '{{"state": "running", "detail": ""}}' > status; exec sleep 1000"""


def refusing(folder: Path, code: int) -> Service:
    script = REFUSES.format(code=code)
    ready = Ready("status_file", str(folder / "status"))
    return Service("one", ("/bin/sh", "-c", script), folder / "one.log", ready, folder=folder, needed=False)


def entry(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = stack_state.read(home)["services"]["one"]
    return found


@contextmanager
def supervised(home: Path, service: Service) -> Iterator[tuple[Plan, subprocess.Popen[bytes]]]:
    """A real supervisor with that service alone."""
    plan = Plan([[service]], {})
    plan.write(home)
    process = subprocess.Popen([sys.executable, "-P", "-m", "onefold.stack.supervisor", str(home)])
    try:
        yield plan, process
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("code", [USAGE, REFUSED])
def test_one_that_others_can_do_without_is_left_out_and_tried_further(tmp_path: Path, code: int) -> None:
    """As docs/deploy.md says. Whoever mends what it refuses need not start anything again."""
    said = io.StringIO()
    with supervised(tmp_path, refusing(tmp_path, code)) as (plan, process):
        control._wait(tmp_path, plan, lambda: process.poll() is None, Progress(said))
        assert f"one is left out: ended with exit code {code}; its log: {tmp_path / 'one.log'}" in said.getvalue()
        shown = f"ended with exit code {code}; starts again after"
        eventually(lambda: entry(tmp_path)["detail"].startswith(shown), 10, "`status` shows how it ended")

        (tmp_path / "mended").touch()
        eventually(lambda: entry(tmp_path)["state"] == "running", 20, "it was started again")


@pytest.mark.parametrize("needed", [False, True])
def test_a_restart_waits_no_longer_for_one_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: bool
) -> None:
    monkeypatch.setattr(control, "READY_S", 20.0)
    (tmp_path / "mended").touch()
    with supervised(tmp_path, replace(refusing(tmp_path, REFUSED), needed=needed)) as (plan, process):
        control._wait(tmp_path, plan, lambda: process.poll() is None, Progress(io.StringIO()))
        (tmp_path / "mended").unlink()
        (tmp_path / "status").unlink()
        with raises(UserError, Code.SERVICE_FAILED, "one refused to start again"):
            control.restart(Settings(home=tmp_path), "one", Progress(io.StringIO()))
        with raises(UserError, Code.SERVICE_FAILED, "one refused to start again"):
            control.restart(Settings(home=tmp_path), "one", Progress(io.StringIO()))


def test_without_one_that_is_needed_nothing_is_waited_for(tmp_path: Path) -> None:
    needed = replace(refusing(tmp_path, REFUSED), needed=True)
    with supervised(tmp_path, needed) as (plan, process), pytest.raises(UserError) as refused:
        control._wait(tmp_path, plan, lambda: process.poll() is None, Progress(io.StringIO()))
    assert "one refused to start (ended with exit code 3)" in refused.value.message


def test_a_stack_that_runs_goes_on_without_one_that_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` beside it has it taken in. Nothing is stopped for it, and nothing says so."""
    script = 'echo \'{"state": "running", "detail": ""}\' > broker; exec sleep 1000'
    broker = replace(refusing(tmp_path, 0), name="kafka", argv=("/bin/sh", "-c", script))
    broker = replace(broker, ready=Ready("status_file", str(tmp_path / "broker")), needed=True)
    needed = replace(refusing(tmp_path, REFUSED), needed=True)
    monkeypatch.setattr(control, "pipeline", lambda *of: [[needed]])
    with supervised(tmp_path, broker) as (plan, process):
        # Started without --only, or nothing would be taken in.
        Plan([*plan.stages, [replace(needed, name="two")]], {}).write(tmp_path)
        eventually(lambda: stack_state.read_running(tmp_path), 10, "the supervisor has said that it runs")
        before = stack_state.read_running(tmp_path)["services"]["kafka"]["pid"]
        with raises(UserError, Code.SERVICE_FAILED, "refused to start"):
            control._take_in(Settings(home=tmp_path), [], stack_state.read_running(tmp_path), Progress(io.StringIO()))
        assert process.poll() is None
        assert stack_state.read_running(tmp_path)["services"]["kafka"]["pid"] == before


@pytest.mark.parametrize("needed", [False, True])
def test_how_it_ended_is_said_also_while_it_starts_again(tmp_path: Path, needed: bool) -> None:
    """The supervisor's pause is short at first, and `up` may look behind it."""
    managed = Managed(replace(refusing(tmp_path, REFUSED), needed=needed))
    managed._on_end(REFUSED)
    managed.state, managed.detail = "starting", ""
    stack_state.write(
        stack_state.path(tmp_path), {"version": stack_state.VERSION, "services": {"one": managed.describe()}}
    )
    said = io.StringIO()
    try:
        control._wait(tmp_path, Plan([[managed.service]], {}), lambda: True, Progress(said))
    except UserError as refused:
        said.write(refused.message)
    assert "ended with exit code 3" in said.getvalue()
