"""One status for several processors, and what a container's health check makes of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onefold.operate import healthy
from onefold.stack import together

RUNNING = {"state": "running", "detail": "4 tasks", "updated_at": 100.0}
WAITING = {"state": "waiting", "detail": "Kafka does not answer", "updated_at": 103.0}
ALIVE = {"state": "running", "detail": "4 tasks"}
ENDED = {"state": "restarting", "detail": "ended with exit code 3; starts again after 0.4 s"}


@pytest.mark.parametrize(
    ("first", "second", "state", "detail", "updated_at"),
    [
        ((ALIVE, RUNNING), (ALIVE, RUNNING), "running", "one: 4 tasks; two: 4 tasks", 100.0),
        ((ALIVE, RUNNING), (ALIVE, WAITING), "waiting", "two: Kafka does not answer", 100.0),
        ((ALIVE, RUNNING), (ENDED, RUNNING), "starting", f"two: {ENDED['detail']}", 100.0),
        (
            (ALIVE, RUNNING),
            (ENDED, {**WAITING, "state": "stopped", "detail": "a topic is gone"}),
            "starting",
            f"two: {ENDED['detail']} (a topic is gone)",
            100.0,
        ),
        ((ALIVE, RUNNING), ({"state": "starting", "detail": ""}, {}), "starting", "two: starting", 0.0),
    ],
)
def test_all_are_running_or_none_is(first: Any, second: Any, state: str, detail: str, updated_at: float) -> None:
    """And the summary is as old as the oldest of what it sums up: one that hangs must not hide behind the others."""
    services, statuses = {"one": first[0], "two": second[0]}, {"one": first[1], "two": second[1]}

    assert together.summary(services, statuses) == {"state": state, "detail": detail, "updated_at": updated_at}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (RUNNING, ""),
        ({**RUNNING, "updated_at": 85.0}, "it has reported nothing for 15 s; its last state was running: 4 tasks"),
        (WAITING, "waiting: Kafka does not answer"),
        ("{", "it has reported nothing yet"),
        (None, "it has reported nothing yet"),
    ],
)
def test_healthy_is_running_and_fresh(tmp_path: Path, status: Any, told: str) -> None:
    """A service that is there and makes no progress is not healthy."""
    file = tmp_path / "status.json"
    if status is not None:
        file.write_text(status if isinstance(status, str) else json.dumps(status))

    assert healthy.trouble(file, now=100.0) == told


def test_the_health_check_is_cheap(tmp_path: Path) -> None:
    """Nothing but the standard library: it is asked every few seconds, in every container."""
    heavy = "('typer', 'onefold.cli.main')"
    program = f"import sys; import onefold.operate.healthy; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    asked = subprocess.run(
        [sys.executable, "-m", "onefold.operate.healthy", str(tmp_path / "nothing")], check=False, capture_output=True
    )
    assert (asked.returncode, asked.stdout) == (1, b"it has reported nothing yet\n")
