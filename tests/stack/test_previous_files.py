"""The state files of the release before are read, its readers take ours, and those of a newer release are refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate.progress import StageProgress
from onefold.stack import control
from onefold.stack.plan import StackPlan
from onefold.stack.ports import Ports, choose_ports, free_ports
from tests.support import previous
from tests.support.coded import raises


def kept(name: str) -> dict[str, Any]:
    """A state file as 0.1.0 wrote it."""
    found: dict[str, Any] = json.loads((previous.FOLDER / name).read_text(encoding="utf-8"))
    return found


def put(home: Path, name: str, body: dict[str, Any]) -> Path:
    """A state file of a home."""
    file = home / "run" / name
    stack_state.write(file, body)
    return file


def test_a_stack_that_0_1_0_started_is_found(tmp_path: Path) -> None:
    """`status` shows it, and `down` ends it."""
    before = kept("stack.json")
    mine = {"supervisor_pid": os.getpid(), "create_time": psutil.Process().create_time()}
    put(tmp_path, "stack.json", before | mine)

    found = stack_state.read_running(tmp_path)
    assert found == before | mine
    assert found["services"]["processor-trades-1"]["restarts"] == 2


def test_a_plan_of_0_1_0_is_read(tmp_path: Path) -> None:
    """Every service with all that was said of it."""
    before = kept("plan.json")
    put(tmp_path, "plan.json", before)

    plan = StackPlan.read(tmp_path)
    assert plan.public == before["public"]
    services = [service.as_json() for stage in plan.stages for service in stage]
    for service, then in zip(services, (service for stage in before["stages"] for service in stage), strict=True):
        read = json.loads(json.dumps({name: service[name] for name in then}))
        assert read == then


def test_a_stack_that_0_1_0_started_is_not_asked_to_take_anything_in(tmp_path: Path) -> None:
    """Its supervisor knows no SIGHUP: it would end, and all services with it."""
    supervisor = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        mine = {"supervisor_pid": supervisor.pid, "create_time": psutil.Process(supervisor.pid).create_time()}
        put(tmp_path, "stack.json", kept("stack.json") | mine)
        plan = put(tmp_path, "plan.json", kept("plan.json"))
        before = plan.read_bytes()
        with raises(UserError, Code.STACK_RUNS, "0.1.0"):
            control._take_in(Settings(home=tmp_path), ["runner"], stack_state.read_running(tmp_path), StageProgress())

        assert supervisor.poll() is None
        assert plan.read_bytes() == before
    finally:
        supervisor.kill()
        supervisor.wait()


def test_a_stack_keeps_the_ports_that_0_1_0_chose(tmp_path: Path) -> None:
    """Clients know them."""
    ports = dict(zip(kept("ports.json"), free_ports(4), strict=True))
    put(tmp_path, "ports.json", ports)

    assert choose_ports(tmp_path) == Ports(**ports)


def test_0_1_0_keeps_the_ports_that_this_version_chose(tmp_path: Path) -> None:
    """It forgot the ports of a file with a field that it did not know."""
    choose_ports(tmp_path)
    assert set(json.loads((tmp_path / "run" / "ports.json").read_text(encoding="utf-8"))) == set(kept("ports.json"))


def test_a_plan_says_its_version(tmp_path: Path) -> None:
    """0.1.0 never reads one of ours: an `up` writes the plan before it starts the supervisor that reads it."""
    StackPlan([], {}).write(tmp_path)
    assert json.loads((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))["version"] == stack_state.VERSION


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("stack.json", stack_state.read),
        ("stack.json", stack_state.read_running),
        ("plan.json", StackPlan.read),
        ("ports.json", choose_ports),
    ],
    ids=lambda value: getattr(value, "__qualname__", value),
)
def test_a_file_of_a_newer_release_is_refused(name: str, read: Callable[[Path], Any], tmp_path: Path) -> None:
    """With what wrote it, what this one knows, and what to do."""
    file = put(tmp_path, name, {**kept(name), "version": stack_state.VERSION + 1})
    before = file.read_bytes()
    with pytest.raises(UserError) as refusal:
        read(tmp_path)

    assert refusal.value.message == (
        f"{file} was written by a newer Onefold, in version {stack_state.VERSION + 1}, "
        f"and this one knows versions up to {stack_state.VERSION}"
    )
    assert refusal.value.hint
    assert file.read_bytes() == before


def test_fields_that_a_later_release_adds_are_left_out(tmp_path: Path) -> None:
    """Or it could not be gone back from."""
    plan, ports = kept("plan.json"), dict(zip(kept("ports.json"), free_ports(4), strict=True))
    plan["stages"] = [[{**service, "nice": 5} for service in stage] for stage in plan["stages"]]
    put(tmp_path, "plan.json", {**plan, "host": "a", "version": stack_state.VERSION})
    put(tmp_path, "ports.json", {**ports, "metrics": 1})

    assert len(StackPlan.read(tmp_path).names) == len(kept("stack.json")["services"])
    assert choose_ports(tmp_path) == Ports(**ports)
