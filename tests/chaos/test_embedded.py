"""Faults on the embedded stack, on a supervisor with small real services under the names of the great ones."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from onefold.chaos import aim
from onefold.chaos.embedded import Embedded, possible
from onefold.chaos.nemeses.table import POSTGRES, PROCESSOR, SINK, nemeses
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.stack.plan import StackPlan
from onefold.stack.service import Ready, SupervisedService
from tests.support.coded import raises
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

#: Its child holds no pipe to the log: the supervisor would wait for the end of that.
SCRIPT = """echo '{"state": "running", "detail": "healthy", "updated_at": 0}' > "$STATUS"
trap 'kill $!; exit' TERM
sleep 1000 > /dev/null 2>&1 & wait"""
NAMES = ("sink-1", "processor-orders-1", "processor-orders-2", "processor-other-1")


def service(home: Path, name: str) -> SupervisedService:
    status = home / f"{name}.status"
    return SupervisedService(
        name,
        ("/bin/sh", "-c", SCRIPT),
        home / f"{name}.log",
        Ready("status_file", str(status)),
        {"STATUS": str(status)},
    )


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a supervisor that runs a sink and three processors."""
    home = tmp_path_factory.mktemp("home")
    StackPlan([[service(home, name) for name in NAMES]], {}).write(home)
    process = subprocess.Popen([sys.executable, "-P", "-m", "onefold.stack.supervisor", str(home)])
    try:
        yield home
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
def home(supervised: Path) -> Path:
    """The supervisor's home, with all services running."""
    eventually(lambda: _are(supervised, "running") == set(NAMES), 20, "all services run")
    return supervised


@pytest.fixture
def stack(home: Path) -> Embedded:
    settings: Any = SimpleNamespace(home=home)
    return Embedded(settings, "orders")


def _are(home: Path, wanted: str) -> set[str]:
    return {name for name, entry in stack_state.read(home).get("services", {}).items() if entry["state"] == wanted}


def _entry(home: Path, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = stack_state.read(home)["services"][name]
    return entry


@pytest.mark.parametrize("act", ["kill", "restart"])
def test_a_service_that_is_ended_starts_again_and_no_other_one_is_touched(
    act: str, home: Path, stack: Embedded
) -> None:
    """Of the processors only that of the pipeline under load."""
    before = {name: _entry(home, name)["pid"] for name in NAMES}
    restarts = _entry(home, "processor-orders-1")["restarts"]
    getattr(stack, act)(PROCESSOR)
    eventually(lambda: _entry(home, "processor-orders-1")["restarts"] == restarts + 1, 20, "it was started again")
    eventually(lambda: _entry(home, "processor-orders-1")["state"] == "running", 20, "it runs")

    assert {name for name in NAMES if _entry(home, name)["pid"] != before[name]} == {"processor-orders-1"}


def test_a_frozen_service_is_frozen_with_all_that_it_started(home: Path, stack: Embedded) -> None:
    """And goes on where it was."""
    process = psutil.Process(_entry(home, "sink-1")["pid"])
    family = [process, *process.children(recursive=True)]
    assert len(family) == 2
    stack.pause(SINK)
    eventually(lambda: {each.status() for each in family} == {psutil.STATUS_STOPPED}, 10, "both are frozen")
    stack.resume(SINK)
    eventually(lambda: psutil.STATUS_STOPPED not in {each.status() for each in family}, 10, "both go on")
    assert _entry(home, "sink-1")["pid"] == process.pid


def test_the_processes_of_the_pipeline_under_load_are_counted(home: Path, stack: Embedded) -> None:
    """And not those of another one, even of one whose name begins alike."""
    settings: Any = SimpleNamespace(home=home)
    assert (stack.instances(PROCESSOR), Embedded(settings, "ord").instances(PROCESSOR)) == (2, 0)
    assert (stack.instances(SINK), stack.instances(POSTGRES)) == (1, 0)


def test_of_replicas_the_one_is_hit_that_publishes(home: Path) -> None:
    settings: Any = SimpleNamespace(home=home)
    first, second = (_entry(home, f"processor-orders-{number}") for number in (1, 2))
    Embedded(settings, "orders", lambda: "2").kill(PROCESSOR)
    again = second["restarts"] + 1
    eventually(lambda: _entry(home, "processor-orders-2")["restarts"] == again, 20, "it was started again")
    assert _entry(home, "processor-orders-1")["pid"] == first["pid"]


def test_where_no_replica_is_known_to_publish_none_is_hit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would be survived by everything."""
    monkeypatch.setattr(aim, "KNOWN_WITHIN_S", 1)
    settings: Any = SimpleNamespace(home=home)
    before = [_entry(home, f"processor-orders-{number}")["pid"] for number in (1, 2)]
    with raises(UserError, Code.FAULT_IMPOSSIBLE):
        Embedded(settings, "orders", lambda: None).kill(PROCESSOR)
    assert [_entry(home, f"processor-orders-{number}")["pid"] for number in (1, 2)] == before


def test_what_does_not_run_cannot_be_broken(stack: Embedded) -> None:
    with raises(UserError, Code.STACK_STOPPED, "postgres") as caught:
        stack.kill(POSTGRES)
    assert "processor-orders-1" in (caught.value.hint or "")


def test_every_nemesis_that_is_offered_can_be_suffered(stack: Embedded) -> None:
    """The others are refused in a sentence, and not offered."""
    offered = possible(nemeses())
    assert {"none", "kill-processor", "kill-spark_sink", "pause-kafka", "restart-postgres"} <= offered.keys()
    assert not {"cut-kafka", "takeover", "two-sinks", "forget-sink", "scale-processor"} & offered.keys()
    for act in (stack.leave_dead, stack.revive, stack.cut, stack.mend, stack.forget):
        with raises(UserError, Code.FAULT_IMPOSSIBLE):
            act(SINK)
    with raises(UserError, Code.FAULT_IMPOSSIBLE):
        stack.scale(PROCESSOR, 2)
