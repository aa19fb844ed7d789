"""What the sink reads from Spark's checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.spark import checkpoint


@pytest.mark.parametrize(
    "content", [None, "", "v1\n{}\n", "v1\n{}\nnot json", "v1\n{}\n[1]", 'v1\n{}\n{"t": 5}', 'v1\n{}\n{"t": {"x": 1}}']
)
def test_a_garbled_note_of_spark_means_start_again(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "offsets").mkdir()
    if content is not None:
        (tmp_path / "offsets" / "3").write_text(content, encoding="utf-8")
    with pytest.raises(Rewind, match="checkpoint was lost or damaged"):
        checkpoint.ends(tmp_path, 3)


def test_only_checkpoints_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"me.{gone.pid}", f"me.{os.getppid()}", f"you.{gone.pid}"):
        (tmp_path / name).mkdir()
    made = checkpoint.fresh(tmp_path, "me", "domain", 7)
    assert made.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {f"me.{os.getppid()}", f"you.{gone.pid}", f"me.{os.getpid()}"}
