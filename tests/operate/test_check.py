"""`onefold check`: what it says of a tick, in one sentence with the file."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from onefold import pipelines
from onefold.operate.check import check_all
from tests.support.command_line import ROOT

SALES = ROOT / "docs" / "examples" / "sales"
TICK = next(
    line for line in (SALES / "sales.py").read_text(encoding="utf-8").splitlines() if line.startswith("    tick=")
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, to be broken. Its modules are loaded anew in each test."""
    shutil.copytree(SALES, tmp_path / "sales")
    monkeypatch.setenv(pipelines.PROJECT_VARIABLE, str(tmp_path / "sales"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("sales", "sales_workload"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path / "sales"


def found(project: Path, file: str, old: str, new: str) -> list[str]:
    """What is said when one part of a file is another one."""
    text = (project / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    (project / file).write_text(text.replace(old, new), encoding="utf-8")
    try:
        return [said for findings in check_all(pipelines.find()).values() for said in findings]
    finally:
        for module in ("sales", "sales_workload"):
            sys.modules.pop(module, None)


def test_an_interval_that_cannot_be_is_one_sentence_with_file_and_line(project: Path) -> None:
    (said,) = found(project, "sales.py", "every_s=1,", "every_s=0.25,")
    assert re.search(r"sales\.py:\d+: .*a tick every 0\.25 s cannot be; say every_s in seconds from 1 to 86400", said)


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "sales_workload.py",
            ", ticks=True",
            "",
            "sales_workload.WORKLOAD has no ticks, and the topology declares a tick",
        ),
        ("sales.py", TICK, "", "sales_workload.WORKLOAD has ticks, and the topology declares no tick"),
    ],
)
def test_a_tick_that_one_side_alone_knows_is_found(project: Path, file: str, old: str, new: str, says: str) -> None:
    (said,) = found(project, file, old, new)
    assert said.startswith(says)


def test_the_example_as_it_is_has_nothing_wrong(project: Path) -> None:
    assert found(project, "sales.py", "every_s=1,", "every_s=1.0,") == []
