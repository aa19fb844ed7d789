"""`onefold process` of one pipeline: several processes in one group, one exit code, one status."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold.processor.core.topology import Topology
from tests.support.command_line import Onefold
from tests.support.processes import drained, judge, opened, produce
from tests.support.waiting import eventually


def wave(seed: int) -> list[tuple[bytes | None, bytes | None]]:
    from onefold.workloads import runner

    return [(made.key, made.value) for made in runner.generate(seed, 3000)]


@pytest.mark.promise("a-process-for-each-core")
@pytest.mark.broker
def test_the_cores_share_the_tasks_and_one_that_is_killed_comes_back_alone(
    fresh_domain: Callable[..., Topology], client: dict[str, str], tmp_path: Path
) -> None:
    """Of a pipeline with two tasks, asked for three processes: two, with a task each."""
    topology = fresh_domain("runner", 2)
    onefold, status = Onefold(tmp_path), tmp_path / "status.json"
    running = onefold.start(
        "process", "runner", "--processes", "3", "--instance", tmp_path.name,
        ONEFOLD_BOOTSTRAP_SERVERS=client["bootstrap.servers"], ONEFOLD_STATUS_FILE=str(status),
    )  # fmt: skip

    def workers() -> dict[str, psutil.Process]:
        found = {one: one.cmdline() for one in psutil.Process(running.pid).children()}
        return {words[-1]: one for one, words in found.items() if "onefold.cli.main" in words}

    def shared() -> bool:
        told: dict[str, Any] = json.loads(status.read_text(encoding="utf-8")) if status.exists() else {}
        return told.get("state") == "running" and len(re.findall(r"runner-[12]: 1 task", told["detail"])) == 2

    try:
        eventually(shared, 60, "each has a task, and the status says so")
        produce(client, topology.inputs[0], wave(1))
        drained(topology, client)
        before = workers()
        assert before.keys() == {f"{tmp_path.name}-1", f"{tmp_path.name}-2"}
        os.kill(before[f"{tmp_path.name}-1"].pid, signal.SIGKILL)
        produce(client, topology.inputs[0], wave(2))
        drained(topology, client, 60)
        eventually(lambda: workers().keys() == before.keys(), 20, "it runs again")
        assert workers()[f"{tmp_path.name}-1"] != before[f"{tmp_path.name}-1"]
        assert workers()[f"{tmp_path.name}-2"] == before[f"{tmp_path.name}-2"]
        assert "was killed by signal 9; starts again" in (tmp_path / "process.out").read_text(encoding="utf-8")
        family = [*workers().values()]
        running.send_signal(signal.SIGTERM)
        assert running.wait(40) == 0
        assert not any(one.is_running() for one in family)
    finally:
        running.kill()
        running.wait(10)
    assert opened(tmp_path / "process.out").keys() == {0, 1}
    judge(topology, client)
