"""What the operating system refuses is one sentence that names the file, and the setting whose folder it is in."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.cli import troubles
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from tests.support.coded import code_of


def refused(number: int, path: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), str(path)) if path else OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EEXIST, errno.ENOTDIR])
@pytest.mark.parametrize(
    ("within", "setting"),
    [("home/kafka", "HOME"), ("home", "HOME"), ("", "HOME"), ("cache/jars", "CACHE"), ("judge/x", "JUDGE_HOME"),
     ("states/x", "STATE_HOME")],
)  # fmt: skip
def test_the_setting_of_the_folder_is_named(
    number: int, within: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in (("HOME", "home"), ("CACHE", "cache"), ("JUDGE_HOME", "judge"), ("STATE_HOME", "states")):
        monkeypatch.setenv(f"ONEFOLD_{name}", str(tmp_path / folder if within else tmp_path / "gone" / folder))
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    if not within:  # the parent of a folder that could not be made, which is that of the home alone
        for name in ("CACHE", "JUDGE_HOME", "STATE_HOME"):
            monkeypatch.setenv(f"ONEFOLD_{name}", "/elsewhere")
    error = troubles.of_file(refused(number, tmp_path / within))

    assert error is not None
    assert error.message == f"{tmp_path / within}: {os.strerror(number)}"
    assert f"Set ONEFOLD_{setting} to a folder" in error.hint


def test_another_file_blames_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    error = troubles.of_file(refused(errno.EACCES, tmp_path / "sql" / "a.sql"))

    assert error is not None
    assert "ONEFOLD_" not in error.hint
    assert f"uid {os.geteuid()}" in error.hint


def test_too_many_open_files_say_how_to_have_more() -> None:
    error = troubles.of_file(refused(errno.EMFILE))

    assert error is not None
    assert error.message == os.strerror(errno.EMFILE)
    assert "ulimit -Hn" in error.hint


@pytest.mark.parametrize("verb", ["status", "check"])
def test_a_working_folder_that_was_removed_is_a_sentence(verb: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$0"; exec "$@"'
    ran = subprocess.run(
        ["/bin/sh", "-c", script, str(gone), sys.executable, "-P", "-m", "onefold.cli.main", verb],
        cwd=gone,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert code_of(ran.stderr) is Code.FOLDER_UNUSABLE
    assert "Traceback" not in ran.stderr


def test_a_file_that_is_missing_is_a_bug(tmp_path: Path) -> None:
    """Of whoever opens it: what may be missing has a sentence of its own there."""
    assert troubles.of_file(refused(errno.ENOENT, tmp_path / "x")) is None


def test_a_name_that_is_no_utf8_is_shown_escaped() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "z\udcfcrich".encode()
    error = troubles.of_text(caught.value)

    assert error is not None
    assert (error.message, error.exit_code) == (r"this is not text in UTF-8: 'z\udcfcrich'", USAGE)
    with pytest.raises(UnicodeEncodeError) as other:
        "\ud800".encode()  # a record's own text, and no name
    assert troubles.of_text(other.value) is None
