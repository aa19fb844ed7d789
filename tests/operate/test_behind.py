"""A start that stands back behind the others."""

import subprocess
import sys
from pathlib import Path

import pytest

from onefold.operate.behind import NICE, Behind
from tests.support.waiting import eventually

LONG_S = 60.0


@pytest.fixture
def group(tmp_path: Path) -> Path:
    file = tmp_path / "autogroup"
    file.write_text("0")
    return file


def test_it_steps_back_and_forward_again(group: Path) -> None:
    behind = Behind(group, LONG_S)
    assert group.read_text() == str(NICE)
    behind.step_forward()
    eventually(lambda: group.read_text() == "0", 10, "it has its full share")


def test_it_does_not_stay_back_for_long(group: Path) -> None:
    Behind(group, most_s=0.01)
    eventually(lambda: group.read_text() == "0", 10, "it has its full share")


def test_a_kernel_that_is_asked_too_soon_is_asked_again(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = Behind(group, LONG_S)
    refused = [True, True, False]
    write = Path.write_text

    def asked(file: Path, text: str) -> int:
        if refused.pop(0):
            raise BlockingIOError
        return write(file, text)

    monkeypatch.setattr(Path, "write_text", asked)
    behind.step_forward()
    eventually(lambda: group.read_text() == "0", 10, "it has its full share")
    assert not refused


def test_without_such_groups_nothing_changes(tmp_path: Path) -> None:
    nowhere = tmp_path / "none" / "autogroup"
    Behind(nowhere).step_forward()
    assert not nowhere.parent.exists()


@pytest.mark.parametrize("own", [True, False])
def test_a_shell_is_not_taken_along(own: bool) -> None:
    program = "from onefold.operate.behind import leads_its_session; print(leads_its_session())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, start_new_session=own)
    assert ran.stdout == f"{own}\n"
