"""When a process puts off the timer that ends it."""

import faulthandler
from typing import Any

import pytest

from onefold.processor import service
from onefold.telemetry import SILENT

WATCHDOG_S = 3_600.0


class Tasks:
    """A group that gives nothing, and a pool whose tasks have been silent for so long."""

    assigned_once = False
    tasks = 0
    silent_s = 0.0

    def poll(self, timeout_s: float) -> None:
        pass

    def publish(self, offsets: object) -> None:
        pass

    def check(self) -> None:
        pass

    def offsets_next(self) -> dict[str, int]:
        return {}

    def silent_for_s(self) -> float:
        return self.silent_s

    def lag(self) -> int:
        return 0


def test_the_watchdog_is_put_off_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in each round, for nothing else runs meanwhile; and at once when a task that was silent goes on."""
    armed: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, exit: armed.append(seconds))  # noqa: A006
    tasks: Any = Tasks()
    instance = service._Instance("runner", tasks, tasks, WATCHDOG_S, None, SILENT)
    for _ in range(50):
        instance.look()
    assert armed == [WATCHDOG_S]
    instance._arming._at = -1e9  # it is due again
    tasks.silent_s = WATCHDOG_S
    instance.look()
    assert armed == [WATCHDOG_S]
    tasks.silent_s = 0.0
    instance.look()
    assert armed == [WATCHDOG_S, WATCHDOG_S]
