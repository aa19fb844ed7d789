"""How many processes a machine's cores make."""

import os
from pathlib import Path

import pytest

from onefold.stack import cores

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("50000 100000", 1), ("max 100000", HERE), (f"{HERE * 100000 + 1} 100000", HERE), ("", HERE), (None, HERE)],
)
def test_a_container_has_what_it_may_use(tmp_path: Path, quota: str | None, expected: int) -> None:
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n", encoding="utf-8")
    assert cores.available(file) == expected


def test_a_part_of_a_core_counts_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    file = tmp_path / "cpu.max"
    file.write_text("250000 100000", encoding="utf-8")
    assert cores.available(file) == 3


@pytest.mark.parametrize(("here", "pipelines", "each"), [(2, 1, 2), (2, 6, 1), (16, 6, 2), (16, 0, 16), (1, 1, 1)])
def test_the_cores_are_shared_among_the_pipelines(
    monkeypatch: pytest.MonkeyPatch, here: int, pipelines: int, each: int
) -> None:
    """And none is without a process."""
    monkeypatch.setattr(cores, "available", lambda: here)
    assert cores.processes(pipelines) == each
