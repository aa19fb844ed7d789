"""The status file: whole or not at all, cheap, and of a known version."""

import json
import time
from pathlib import Path

import pytest

from onefold import status_file
from onefold.operate import healthy
from onefold.stack import foreground
from onefold.stack.service import Ready, SupervisedService, is_ready
from onefold.status_file import Status

NEWER = "status.json is of a newer Onefold: its version is 2, and 1 is known here"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    before = time.time()
    Status(tmp_path / "status.json").write("waiting", "Kafka does not answer")

    status = status_file.read(tmp_path / "status.json")
    assert before <= status.pop("updated_at") <= time.time()
    assert status == {"state": "waiting", "detail": "Kafka does not answer"}
    assert json.loads((tmp_path / "status.json").read_text(encoding="utf-8"))["version"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]


def test_the_same_again_is_not_written_again_at_once(tmp_path: Path) -> None:
    """The sink says it five times a second. Something else is written at once."""
    file = tmp_path / "status.json"
    status = Status(file)
    status.write("running", "4 tasks")
    file.unlink()
    status.write("running", "4 tasks")
    assert not file.exists()
    status.write("running", "5 tasks")
    assert status_file.read(file)["detail"] == "5 tasks"


def test_no_file_is_no_trouble(tmp_path: Path) -> None:
    Status(None).write("running", "")
    assert status_file.read(tmp_path / "nothing") == {}


@pytest.mark.parametrize("text", ["", "[]", "null", '{"version": "x", "state": "running"}', '{"detail": ""}'])
def test_what_is_no_status_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text, encoding="utf-8")
    assert status_file.read(tmp_path / "status.json") == {}


def test_a_file_without_a_version_is_of_the_first(tmp_path: Path) -> None:
    """As the Onefold before this one wrote it."""
    before = {"state": "running", "detail": "4 tasks", "updated_at": 100.0}
    (tmp_path / "status.json").write_text(json.dumps(before), encoding="utf-8")
    assert status_file.read(tmp_path / "status.json") == before
    assert healthy.trouble(tmp_path / "status.json", now=101.0) == ""


def test_a_newer_one_is_refused_in_one_sentence_by_all_who_read_it(tmp_path: Path) -> None:
    """Whatever else is in it."""
    file = tmp_path / "status.json"
    file.write_text('{"version": 2, "how": "well"}', encoding="utf-8")
    with pytest.raises(status_file.Newer, match=NEWER):
        status_file.read(file)
    assert healthy.trouble(file, now=0.0) == NEWER
    service = SupervisedService(name="one", argv=("true",), log=tmp_path / "log", ready=Ready("status_file", str(file)))
    assert is_ready(service.ready) == (False, NEWER)
    assert foreground._read(file)["detail"] == NEWER
