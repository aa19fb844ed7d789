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
from onefold.operate import state
from onefold.operate.errors import UserError
from onefold.stack.plan import Plan
from onefold.stack.service import Ready, Service
from tests.support.waiting import eventually

SCRIPT = """echo '{"state": "running", "detail": "healthy", "updated_at": 0}' > "$STATUS"; sleep 1000 & wait"""


def service(home: Path, name: str) -> Service:
    status = home / f"{name}.status"
    return Service(
        name,
        ("/bin/sh", "-c", SCRIPT),
        home / f"{name}.log",
        Ready("status_file", str(status)),
        {"STATUS": str(status)},
    )


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose supervisor runs a sink and three processors."""
    names = ("sink-1", "processor-orders-1", "processor-orders-2", "processor-other-1")
    Plan([[service(tmp_path, name) for name in names]], {}).write(tmp_path)
    process = subprocess.Popen([sys.executable, "-P", "-m", "onefold.stack.supervisor", str(tmp_path)])
    try:
        eventually(lambda: _are(tmp_path, "running") == set(names), 20, "all services run")
        yield tmp_path
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
def stack(home: Path) -> Embedded:
    settings: Any = SimpleNamespace(home=home)
    return Embedded(settings, "orders")


def _are(home: Path, wanted: str) -> set[str]:
    return {name for name, entry in state.read(home).get("services", {}).items() if entry["state"] == wanted}


def _entry(home: Path, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = state.read(home)["services"][name]
    return entry


@pytest.mark.long  # 18 s
@pytest.mark.parametrize("act", ["kill", "restart"])
def test_a_service_that_is_ended_starts_again_and_no_other_one_is_touched(
    act: str, home: Path, stack: Embedded
) -> None:
    """Of the processors only that of the pipeline under load."""
    before = {name: _entry(home, name)["pid"] for name in ("sink-1", "processor-orders-1", "processor-other-1")}
    getattr(stack, act)(PROCESSOR)
    eventually(lambda: _entry(home, "processor-orders-1")["restarts"] == 1, 20, "it was started again")
    eventually(lambda: _entry(home, "processor-orders-1")["state"] == "running", 20, "it runs")

    assert _entry(home, "processor-orders-1")["pid"] != before["processor-orders-1"]
    assert [_entry(home, name)["pid"] for name in ("sink-1", "processor-other-1")] == [
        before["sink-1"],
        before["processor-other-1"],
    ]


@pytest.mark.long  # 9 s
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


@pytest.mark.long  # 9 s
def test_the_processes_of_the_pipeline_under_load_are_counted(home: Path, stack: Embedded) -> None:
    """And not those of another one, even of one whose name begins alike."""
    settings: Any = SimpleNamespace(home=home)
    assert (stack.instances(PROCESSOR), Embedded(settings, "ord").instances(PROCESSOR)) == (2, 0)
    assert (stack.instances(SINK), stack.instances(POSTGRES)) == (1, 0)


@pytest.mark.long  # 8 s
def test_of_replicas_the_one_is_hit_that_publishes(home: Path) -> None:
    settings: Any = SimpleNamespace(home=home)
    before = {name: _entry(home, name)["pid"] for name in ("processor-orders-1", "processor-orders-2")}
    Embedded(settings, "orders", lambda: "2").kill(PROCESSOR)
    eventually(lambda: _entry(home, "processor-orders-2")["restarts"] == 1, 20, "it was started again")
    assert _entry(home, "processor-orders-1")["pid"] == before["processor-orders-1"]


@pytest.mark.long  # 10 s
def test_where_no_replica_is_known_to_publish_none_is_hit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would be survived by everything."""
    monkeypatch.setattr(aim, "TOLD_WITHIN_S", 1)
    settings: Any = SimpleNamespace(home=home)
    with pytest.raises(UserError, match="no replica has said within 1 s"):
        Embedded(settings, "orders", lambda: None).kill(PROCESSOR)
    assert [_entry(home, f"processor-orders-{number}")["restarts"] for number in (1, 2)] == [0, 0]


@pytest.mark.long  # 8 s
def test_what_does_not_run_cannot_be_broken(stack: Embedded) -> None:
    with pytest.raises(UserError, match="postgres does not run in ") as caught:
        stack.kill(POSTGRES)
    assert "processor-orders-1" in (caught.value.hint or "")


@pytest.mark.long  # 8 s
def test_every_nemesis_that_is_offered_can_be_suffered(stack: Embedded) -> None:
    """The others are refused in a sentence, and not offered."""
    offered = possible(nemeses())
    assert {"none", "kill-processor", "kill-spark_sink", "pause-kafka", "restart-postgres"} <= offered.keys()
    assert not {"cut-kafka", "takeover", "two-sinks", "forget-sink", "scale-processor"} & offered.keys()
    for act in (stack.leave_dead, stack.revive, stack.cut, stack.mend, stack.forget):
        with pytest.raises(UserError, match="the embedded stack cannot"):
            act(SINK)
    with pytest.raises(UserError, match="the embedded stack cannot scale"):
        stack.scale(PROCESSOR, 2)
