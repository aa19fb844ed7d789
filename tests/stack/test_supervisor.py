"""The supervisor with small real children: order, readiness, new starts with growing pauses, stopping, and no
orphans, ever.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold.config import stack_state
from onefold.stack.child import end_known
from onefold.stack.plan import StackPlan
from onefold.stack.service import Ready, SupervisedService
from onefold.stack.supervisor import BACKOFF_MAX_S, STABLE_S, Managed, Supervisor
from tests.support import previous
from tests.support.clock import Clock
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
FOREVER = "exec sleep 1000"


def service(folder: Path, name: str, script: str, ready: str = "status_file", stop_s: float = 5.0) -> SupervisedService:
    """A shell script as a service; it is ready when it has written `running` into its status file."""
    return SupervisedService(
        name=name,
        argv=("/bin/sh", "-c", script),
        log=folder / f"{name}.log",
        ready=Ready("status_file", str(folder / f"{name}.status")) if ready == "status_file" else Ready("done"),
        environment={"STATUS": str(folder / f"{name}.status"), "TRACE": str(folder / "trace")},
        stop_s=stop_s,
    )


SAY_RUNNING = """echo '{"state": "running", "detail": "well"}' > "$STATUS";"""


@pytest.fixture
def started() -> Iterator[list[Managed]]:
    """Services that are stopped when the test ends."""
    managed: list[Managed] = []
    yield managed
    for each in managed:
        each.child.kill()


def turn_until(managed: Managed, wanted: str) -> None:
    """Turns a service until it is in a state."""

    def reached() -> bool:
        managed.turn()
        return managed.state == wanted

    eventually(reached, 10, f"{managed.service.name} is {wanted}; it is {managed.state} {managed.detail}")


def test_pauses_before_new_starts_double_up_to_a_limit_and_begin_anew_after_a_long_life(
    tmp_path: Path, started: list[Managed]
) -> None:
    clock = Clock()
    managed = Managed(service(tmp_path, "broken", "exit 7"), clock)
    started.append(managed)
    pauses = []
    for _ in range(8):
        turn_until(managed, "restarting")
        assert managed.exit_code == 7
        pauses.append(managed._start_at - clock.now)
        clock.now += pauses[-1] - 0.01
        managed.turn()
        assert managed.state == "restarting", "it started before its pause was over"
        clock.now += 0.02
        managed.turn()
        assert managed.state == "starting"
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, BACKOFF_MAX_S, BACKOFF_MAX_S])
    clock.now += STABLE_S
    turn_until(managed, "restarting")
    assert managed._start_at - clock.now == pytest.approx(0.2)
    assert managed.restarts == 9


def test_a_killed_service_is_named_by_its_signal_and_its_old_status_does_not_count(
    tmp_path: Path, started: list[Managed]
) -> None:
    clock = Clock()
    managed = Managed(service(tmp_path, "one", f'[ -e "$TRACE" ] || {SAY_RUNNING} touch "$TRACE"; {FOREVER}'), clock)
    started.append(managed)
    turn_until(managed, "running")
    assert managed.detail == "well"
    os.kill(managed.child.pid or 0, signal.SIGKILL)
    turn_until(managed, "restarting")
    assert "signal 9" in managed.detail
    clock.now += 1
    turn_until(managed, "starting")
    assert managed.detail == ""
    last_end = managed.describe()["last_end"]
    assert last_end["why"] == "was killed by signal 9"
    assert abs(time.time() - last_end["at"]) < 60
    assert last_end["log_at"] == managed.service.log.stat().st_size
    managed.turn()
    assert managed.state == "starting", "the status file of the dead process was believed"


def test_a_service_that_lacks_something_is_waiting_and_comes_back(tmp_path: Path, started: list[Managed]) -> None:
    managed = Managed(service(tmp_path, "one", SAY_RUNNING + FOREVER))
    started.append(managed)
    turn_until(managed, "running")
    status = tmp_path / "one.status"
    status.write_text('{"state": "waiting", "detail": "no broker"}', encoding="utf-8")
    turn_until(managed, "waiting")
    assert managed.detail == "no broker"
    status.write_text('{"state": "running", "detail": ""}', encoding="utf-8")
    turn_until(managed, "running")


def test_a_stage_starts_when_the_one_before_is_ready_and_stops_before_it(tmp_path: Path) -> None:
    trap = """trap 'echo "stop $0" >> "$TRACE"; exit 0' TERM; echo "start $0" >> "$TRACE";"""
    body = f"""{trap} {SAY_RUNNING} while :; do sleep 0.01; done"""

    def named(name: str) -> SupervisedService:
        made = service(tmp_path, name, body)
        return SupervisedService(**{**vars(made), "argv": (*made.argv, name)})

    told: list[dict[str, Any]] = []
    supervisor = Supervisor(
        [[named("first")], [service(tmp_path, "task", 'echo "task" >> "$TRACE"', "done")], [named("last")]], told.append
    )
    trace = tmp_path / "trace"

    def all_ready() -> bool:
        supervisor.turn()
        return all(managed.was_ready for stage in supervisor.stages for managed in stage)

    try:
        eventually(all_ready, 10, "all stages are ready")
    finally:
        supervisor.stop()
    assert trace.read_text(encoding="utf-8").splitlines() == [
        "start first",
        "task",
        "start last",
        "stop last",
        "stop first",
    ]
    assert {name: entry["state"] for name, entry in told[-1].items()} == dict.fromkeys(
        ("first", "task", "last"), "stopped"
    )
    assert told[0]["last"]["state"] == "pending"


def test_a_service_that_ignores_the_stop_signal_is_killed_after_its_time(tmp_path: Path) -> None:
    stubborn = service(tmp_path, "stubborn", f"trap '' TERM; {SAY_RUNNING} while :; do sleep 0.01; done", stop_s=0.2)
    supervisor = Supervisor([[stubborn]], lambda services: None)
    (managed,) = supervisor.stages[0]
    turn_until(managed, "running")
    supervisor.stop()
    assert managed.child.poll() == -signal.SIGKILL


@pytest.fixture
def running_supervisor(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A real supervisor process with two children, and its home."""
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    stages = [[service(tmp_path, "first", SAY_RUNNING + FOREVER)], [service(tmp_path, "second", SAY_RUNNING + FOREVER)]]
    StackPlan(stages, {"bootstrap_servers": "a", "postgres_dsn": "b"}).write(home)
    process = subprocess.Popen([sys.executable, "-m", "onefold.stack.supervisor", str(home)], cwd=ROOT)
    eventually(lambda: states(home) == {"first": "running", "second": "running"}, 10, "both services run")
    yield home, process
    process.kill()
    process.wait()


def states(home: Path) -> dict[str, str]:
    """What stack.json says about the services."""
    return {name: entry["state"] for name, entry in stack_state.read(home).get("services", {}).items()}


def test_a_killed_supervisor_leaves_no_child(running_supervisor: tuple[Path, subprocess.Popen[bytes]]) -> None:
    home, process = running_supervisor
    children = [(entry["pid"], entry["create_time"]) for entry in stack_state.read(home)["services"].values()]
    process.kill()
    process.wait()
    eventually(
        lambda: not any(stack_state.alive(*child) for child in children), 5, "the children ended with their supervisor"
    )
    assert stack_state.read_running(home) == {}


def test_a_killed_child_is_started_again_and_the_state_tells(
    running_supervisor: tuple[Path, subprocess.Popen[bytes]],
) -> None:
    home, _ = running_supervisor
    found, then = stack_state.read(home), json.loads((previous.FOLDER / "stack.json").read_text(encoding="utf-8"))
    assert found["version"] == stack_state.VERSION
    assert set(found["services"]["second"]) >= set(then["services"]["sink-1"]), "0.1.0 can show and end it"
    before = stack_state.read(home)["services"]["second"]
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: stack_state.read(home)["services"]["second"]["restarts"] == 1, 5, "the end was noticed")
    eventually(lambda: states(home)["second"] == "running", 5, "it runs again")
    after = stack_state.read(home)["services"]["second"]
    assert (after["pid"], after["restarts"]) != (before["pid"], 0)


def test_a_supervisor_that_is_asked_to_stop_takes_everything_with_it(
    running_supervisor: tuple[Path, subprocess.Popen[bytes]],
) -> None:
    home, process = running_supervisor
    found = stack_state.read(home)
    assert found["bootstrap_servers"] == "a"
    assert found["supervisor_pid"] == process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not stack_state.path(home).exists()
    assert not any(stack_state.alive(entry["pid"], entry["create_time"]) for entry in found["services"].values())


def test_only_the_process_with_the_right_birth_time_is_ended() -> None:
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        born = psutil.Process(bystander.pid).create_time()
        assert not end_known(bystander.pid, born - 1)
        assert bystander.poll() is None
        assert end_known(bystander.pid, born)
    finally:
        bystander.kill()
        bystander.wait()


def test_a_service_travels_as_json(tmp_path: Path) -> None:
    sent = SupervisedService(
        "one",
        ("a", "b"),
        tmp_path / "log",
        Ready("kafka", "here:1"),
        {"A": "b"},
        tmp_path,
        signal.SIGINT,
        3.0,
        signal.SIGQUIT,
        (1, 2),
    )
    assert SupervisedService.from_json(json.loads(json.dumps(sent.as_json()))) == sent


def test_the_state_file_is_private(tmp_path: Path) -> None:
    stack_state.write(stack_state.path(tmp_path), {"postgres_dsn": "with a password"})
    assert stack_state.path(tmp_path).stat().st_mode & 0o077 == 0


def test_another_plan_leaves_what_is_in_both_alone(tmp_path: Path) -> None:
    """What is new is started, what is gone or changed is stopped; a service that is the same keeps its process."""
    published: list[dict[str, Any]] = []
    forever = f"{SAY_RUNNING} {FOREVER}"
    same, gone, changed = (service(tmp_path, name, forever) for name in ("same", "gone", "changed"))
    supervisor = Supervisor([[same], [gone, changed]], published.append)

    def running(*names: str) -> bool:
        supervisor.turn()
        return {name for name, entry in published[-1].items() if entry["state"] == "running"} == set(names)

    try:
        eventually(lambda: running("same", "gone", "changed"), 10, "all three run")
        pids = {name: entry["pid"] for name, entry in published[-1].items()}
        other, new = service(tmp_path, "changed", f": other; {forever}"), service(tmp_path, "new", forever)
        supervisor.adopt([[same], [other, new]])
        eventually(lambda: running("same", "changed", "new"), 10, "the new plan runs")

        assert published[-1]["same"]["pid"] == pids["same"]
        assert published[-1]["changed"]["pid"] != pids["changed"]
        assert not psutil.pid_exists(pids["gone"])
        assert not psutil.pid_exists(pids["changed"])
    finally:
        supervisor.stop()
