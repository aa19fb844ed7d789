"""What the sink reads from Spark's checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.error_codes import Code
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.spark import checkpoint
from onefold.spark_sink.spark.options import options
from tests.support.coded import raises


@pytest.mark.parametrize(
    "content", [None, "", "v1\n{}\n", "v1\n{}\nnot json", "v1\n{}\n[1]", 'v1\n{}\n{"t": 5}', 'v1\n{}\n{"t": {"x": 1}}']
)
def test_a_garbled_note_of_spark_means_start_again(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "offsets").mkdir()
    if content is not None:
        (tmp_path / "offsets" / "3").write_text(content, encoding="utf-8")
    with raises(Rewind, Code.CHECKPOINT_LOST):
        checkpoint.ends(tmp_path, 3)


def test_only_checkpoints_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"me.{gone.pid}", f"me.{os.getppid()}", f"you.{gone.pid}"):
        (tmp_path / name).mkdir()
    made = checkpoint.fresh(tmp_path, "me", "domain")
    assert made.is_dir()
    assert checkpoint.fresh(tmp_path, "me", "domain") != made
    assert {path.name for path in tmp_path.iterdir()} == {f"me.{os.getppid()}", f"you.{gone.pid}", f"me.{os.getpid()}"}


def test_in_memory_a_checkpoint_has_a_folder_that_is_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_MEMORY", tmp_path)
    ours = tmp_path / f"onefold-{os.geteuid()}"
    ours.mkdir(mode=0o777)
    ours.chmod(0o777)  # by an older Onefold, with another umask
    assert checkpoint.scratch(Path("/home/sink-1")) == ours / "home-sink-1"
    assert ours.stat().st_mode & 0o777 == 0o700
    ours.rmdir()
    assert checkpoint.scratch(Path("/home/sink-1")) == ours / "home-sink-1"
    assert ours.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["a link to a folder", "a link to nothing", "a file", "a folder of another user"])
def test_a_checkpoint_is_not_in_memory_where_somebody_else_has_taken_its_name(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may write there: whoever has that folder writes the offsets that rows land with."""
    monkeypatch.setattr(checkpoint, "_MEMORY", tmp_path)
    ours, elsewhere = tmp_path / f"onefold-{os.geteuid()}", tmp_path / "elsewhere"
    if what == "a folder of another user":
        ours.mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        ours.rename(tmp_path / f"onefold-{os.geteuid()}")
    elif what == "a file":
        ours.touch()
    else:
        if what == "a link to a folder":
            elsewhere.mkdir()
        ours.symlink_to(elsewhere)
    assert checkpoint.scratch(Path("/home/sink-1")) == Path("/home/sink-1")


def test_spark_empties_no_folder_that_it_has_not_made(tmp_path: Path) -> None:
    """What a JVM that was killed has left goes; what lay there before the first sink stays."""
    theirs = tmp_path / "sink-drawings" / "tmp" / "plan.pdf"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    options([], tmp_path / "sink-drawings")
    assert theirs.exists()
    options([], tmp_path / "sink-1")
    left = tmp_path / "sink-1" / "tmp" / "libsnappyjava.so"
    left.touch()
    options([], tmp_path / "sink-1")
    assert not left.exists()
