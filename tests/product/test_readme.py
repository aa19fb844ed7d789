"""The files that the README shows, and the pages that messages name, are there and run."""

import os
import re
import subprocess
import sys

import pytest

from onefold.cli.main import run
from tests.support.rooms import ROOT


def test_the_readme_shows_files_that_run() -> None:
    """Its two files are those of examples/first, letter by letter, and the second one prints what the README says."""
    folder = ROOT / "examples" / "first"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)
    printed = re.findall(r"^```\n(\{.*?)^```\n", text, re.MULTILINE | re.DOTALL)

    assert shown == [(folder / name).read_text(encoding="utf-8") for name in ("orders.py", "crash.py")]
    ran = subprocess.run(
        [sys.executable, "crash.py"], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, encoding="utf-8", check=True, timeout=60,
    )  # fmt: skip
    assert [ran.stdout] == printed


@pytest.mark.parametrize("page", ["operating", "jobs", "evolution"])
def test_a_page_that_a_message_names_is_printed(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`onefold docs` has it."""
    assert run(["docs", page]) == 0
    assert capsys.readouterr().out.startswith("# ")
