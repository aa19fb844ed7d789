"""`onefold demo`: what it says when its stack goes away under it."""

import itertools
import os
import time
from pathlib import Path

import psutil
import pytest

from onefold.cli.commands import demo
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate import offsets
from onefold.operate.progress import StageProgress
from tests.support.coded import raises


@pytest.mark.parametrize("services", [None, {}, {"sink-1": {"pid": None}}, {"sink-1": {"pid": 1}}])
def test_a_service_that_is_gone_is_a_sentence(
    services: dict[str, dict[str, int | None]] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has stopped the stack, which may be before the demo looks, or just after."""

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    if services is not None:
        me = psutil.Process()
        running = {"supervisor_pid": me.pid, "create_time": me.create_time(), "services": services}
        stack_state.write(stack_state.path(tmp_path), running)
    with raises(UserError, Code.MEASUREMENT_FAILED, "sink-1"):
        demo._kill(Settings(home=tmp_path), "sink-1")


def test_the_demo_waits_as_long_as_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a slow machine in all for longer than it waits for the next record."""
    left, now = iter([9, 7, 12, 5, 5, 2, 0]), itertools.count(0, 15)
    monkeypatch.setattr(demo, "POLL_S", 0)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(offsets, "lag_of_all", lambda settings: {"runner": {"events": next(left)}})
    demo._drain(Settings(home=tmp_path), StageProgress())
    assert next(left, None) is None
    left = itertools.chain([9], itertools.repeat(7))
    with raises(UserError, Code.MEASUREMENT_FAILED, "180"):
        demo._drain(Settings(home=tmp_path), StageProgress())
