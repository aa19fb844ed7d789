"""`onefold demo`: what it says when its stack goes away under it."""

import os
from pathlib import Path

import psutil
import pytest

from onefold.cli.commands import demo
from onefold.operate import state
from onefold.operate.errors import UserError
from onefold.operate.settings import Settings


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
        state.write(state.path(tmp_path), running)
    with pytest.raises(UserError, match="sink-1 is not running, so it cannot be killed"):
        demo._kill(Settings(home=tmp_path), "sink-1")
