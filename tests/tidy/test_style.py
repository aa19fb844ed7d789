"""What a reader should not have to find by reading."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.support.rooms import ROOT, modules, nodes, parsed

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


def name_of(path: Path) -> str:
    """As a message shows it."""
    return str(path.relative_to(ROOT))


def test_there_is_something_to_look_at() -> None:
    """An empty list of what is wrong could also mean that nobody looked."""
    assert len(CODE) > 200
    assert len(SQL) > 20
    assert Path(__file__) in CODE


def test_files_and_functions_are_short() -> None:
    """A file fits into a quarter of an hour, a function onto a screen."""
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE}
    functions = {
        f"{name_of(path)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in CODE
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    }

    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}
    assert {name: count for name, count in functions.items() if count > FUNCTION_LINES_MAX} == {}


def test_nothing_banned_is_in_it() -> None:
    """Each with what to do instead."""
    looked_at = {name_of(path): path.read_text(encoding="utf-8") for path in (*CODE, *SQL) if path != Path(__file__)}

    assert [(name, advice) for name, text in looked_at.items() for what, advice in BANNED.items()
            if re.search(what, text)] == []  # fmt: skip


def test_tests_wait_for_conditions() -> None:
    """A sleep is either too short on a busy machine or too long on an idle one."""
    tests = {name_of(path): path.read_text(encoding="utf-8") for path in CODE if path.is_relative_to(ROOT / "tests")}

    assert {name for name, text in tests.items() if re.search(r"\bsleep\(", text)} == MAY_SLEEP


def test_every_module_says_what_it_is() -> None:
    """In its first line; an empty `__init__.py` has nothing to say."""
    silent = [path for path in CODE if not ast.get_docstring(parsed(path))]

    assert [name_of(path) for path in silent if path.name != "__init__.py" or path.read_text(encoding="utf-8")] == []


def test_every_statement_opens_with_its_reason() -> None:
    """SQL is source code."""
    assert [name_of(path) for path in SQL if not path.read_text(encoding="utf-8").startswith("--")] == []


def test_ruff_is_content() -> None:
    """Lint and format, as pyproject.toml asks for them."""
    for arguments in (["check"], ["format", "--check"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "."], cwd=ROOT, capture_output=True, encoding="utf-8"
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_lock_names_every_dependency_with_its_hash() -> None:
    """And no place that it comes from."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"https?://|--index|--find-links|file:", lock)
    pins = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z])", lock, flags=re.MULTILINE)[1:]
    assert len(pins) == len(blocks)
    assert all("--hash=sha256:" in block for block in blocks)
