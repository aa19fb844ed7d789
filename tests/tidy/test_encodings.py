"""Every file and every pipe of text has its encoding named: what a locale says is a property of a machine, not of a file."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.rooms import ROOT, modules

FILES = sorted({*modules().values(), ROOT / "onefold"}.union(
    *((ROOT / folder).rglob("*.py") for folder in ("cli/template", "docs/examples", "images"))
))  # fmt: skip
TEMPORARY = {"NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"}
RUNS = {"run", "Popen", "check_output", "getoutput", "getstatusoutput"}
# How many arguments stand before `encoding`.
BEFORE = {"read_text": 0, "write_text": 1, "TextIOWrapper": 1, "FileHandler": 2}
MODE = re.compile(r"[rwxa]\+?t?\+?")


def without_encoding(text: str) -> Iterator[int]:
    """The lines of calls that take their encoding from the locale. Ruff's PLW1514 finds a path only by its type, and no pipe."""
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        named = {keyword.arg for keyword in call.keywords}
        if {"encoding", None} & named:  # None: `**options`
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        modes = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        opens_text = any(MODE.fullmatch(mode) for mode in modes)
        if (
            (name in BEFORE and len(call.args) <= BEFORE[name])
            or (name in TEMPORARY and opens_text)
            or (name in {"open", "fdopen"} and opens_text)
            or (name == "open" and isinstance(call.func, ast.Name) and len(values) < 2)
            or (name in RUNS and {"text", "universal_newlines"} & named)
        ):
            yield call.lineno


def test_no_file_and_no_pipe_rests_on_the_locale() -> None:
    """In the product, in what `onefold new` writes, and in the tests."""
    found = {str(path.relative_to(ROOT)): [*without_encoding(path.read_text(encoding="utf-8"))] for path in FILES}

    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "self.path.read_text()", "found.path.write_text(text)", "open(name)", "open(name, 'w')", "self.log.open('a')",
        "os.fdopen(number, 'w')", "gzip.open(name, 'rt')", "NamedTemporaryFile('w')", "NamedTemporaryFile(mode='w+')",
        "subprocess.run(command, text=True)", "Popen(command, universal_newlines=True)", "io.TextIOWrapper(raw)",
    ],
)  # fmt: skip
def test_planted_calls_are_found(line: str) -> None:
    """Each kind of call that the rule stands for."""
    assert [*without_encoding(line)] == [1]


@pytest.mark.parametrize(
    "line",
    [
        "path.read_text('utf-8')", "path.write_text(text, encoding='utf-8')", "open(name, 'rb')", "page.open('/sheets')",
        "publisher.open()", "NamedTemporaryFile()", "subprocess.run(command, encoding='utf-8')", "open(STAMP, **NAMES)",
    ],
)  # fmt: skip
def test_other_calls_are_not(line: str) -> None:
    """Bytes, encodings that have a name, and what is no file."""
    assert [*without_encoding(line)] == []
