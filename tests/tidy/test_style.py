"""What a reader should not have to find by reading."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rooms import ROOT, modules

CODE = sorted(modules().values())
SQL = sorted((ROOT / "sql").rglob("*.sql"))

LINES_MAX = 400
FUNCTION_LINES_MAX = 70
# What must not be in a file, and what to do instead.
BANNED = {
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "do it, or write an issue",
    r"\bpkill\b|\bkillall\b": "end only processes that we started, by pid",
    r"from unittest|import mock\b": "real parts; a simulation where it keeps the same promises",
}
# A wait that is not for a condition. The two places that may: the helper that waits for conditions, and code that paces.
MAY_SLEEP = {"tests/support/waiting.py"}


@pytest.mark.parametrize("path", CODE, ids=str)
def test_files_and_functions_are_short(path: Path) -> None:
    """A file fits into a quarter of an hour, a function onto a screen."""
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    long = [
        f"{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


@pytest.mark.parametrize("path", [path for path in (*CODE, *SQL) if path != Path(__file__)], ids=str)
def test_nothing_banned_is_in_it(path: Path) -> None:
    """Each with what to do instead."""
    text = path.read_text()
    assert [advice for pattern, advice in BANNED.items() if re.search(pattern, text)] == []


@pytest.mark.parametrize("path", [path for path in CODE if path.parts[len(ROOT.parts)] == "tests"], ids=str)
def test_tests_wait_for_conditions(path: Path) -> None:
    """A sleep is either too short on a busy machine or too long on an idle one."""
    if str(path.relative_to(ROOT)) not in MAY_SLEEP:
        assert not re.search(r"\bsleep\(", path.read_text())


@pytest.mark.parametrize("path", [path for path in CODE if path.name != "__init__.py" or path.read_text()], ids=str)
def test_every_module_says_what_it_is(path: Path) -> None:
    """In its first line."""
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", SQL, ids=str)
def test_every_statement_opens_with_its_reason(path: Path) -> None:
    """SQL is source code."""
    assert path.read_text().startswith("--")


def test_ruff_is_content() -> None:
    """Lint and format, as pyproject.toml asks for them."""
    for arguments in (["check"], ["format", "--check"]):
        ran = subprocess.run([sys.executable, "-m", "ruff", *arguments, "."], cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_lock_names_every_dependency_with_its_hash() -> None:
    """And no place that it comes from."""
    lock = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"https?://|--index|--find-links|file:", lock)
    pins = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z])", lock, flags=re.MULTILINE)[1:]
    assert len(pins) == len(blocks)
    assert all("--hash=sha256:" in block for block in blocks)
