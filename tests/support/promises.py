"""Promises and the tests for them: tests/promises.toml, the marker `promise`, and docs/promises.md.

`python -m tests.support.promises` writes the page. A run of a whole tier fails if a promise has no passed test.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.rooms import ROOT

PAGE = ROOT / "docs" / "promises.md"
SENTENCES: dict[str, str] = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))
_MARK = "promise"

_HEAD = """# Promises and their tests

Each line is a promise and the tests that are red without it.
`./onefold test` fails when a promise has no test that ran and passed.
This page is made from the marks of the tests (`python -m tests.support.promises`).

| promise | tests |
|---|---|
"""
_TAIL = """
Not promised: an acknowledged record is in the page cache of the broker, not on its disk.
A power cut of a single broker can lose it, and the embedded broker is one node.
`onefold status` says [what else the settings in force weaken](guarantee.md).
See also [what remains](design.md#what-remains).
"""


def pytest_configure(config: pytest.Config) -> None:
    """Register the watch in the main process, which gets the reports of all workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Watch(config), "promises-shown")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add a test's promises to its reports."""
    for item in items:
        for name in promised(item):
            if name not in SENTENCES:
                raise pytest.UsageError(f"{item.nodeid}: tests/promises.toml has no promise {name}")
            item.user_properties.append((_MARK, name))


def promised(item: pytest.Item) -> list[str]:
    """Names of the promises that a test covers."""
    return [str(name) for mark in item.iter_markers(_MARK) for name in mark.args]


class _Watch:
    """Fails a run of a whole tier if a promise has no passed test."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        selected = option.file_or_dir or option.keyword or option.markexpr or option.deselect or option.collectonly
        self._whole = not (selected or option.fast or getattr(option, "lf", False))
        self._shown = set[str]()
        self._missing: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the promises of passed tests in all processes; a skipped test does not count."""
        if report.when == "call" and report.passed:
            self._shown.update(str(name) for key, name in report.user_properties if key == _MARK)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compute the missing promises, whatever else failed."""
        if self._whole:
            self._missing = [name for name in SENTENCES if name not in self._shown]
        if self._missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the missing promises with their sentences."""
        if self._missing:
            terminalreporter.section("promises that no test has shown")
            for name in self._missing:
                terminalreporter.write_line(f"{name}: {SENTENCES[name]}")
        elif self._whole:
            terminalreporter.write_line(f"{len(SENTENCES)} promises, each with a test that passed")


def page() -> str:
    """The expected page."""
    shown: dict[str, list[str]] = {name: [] for name in SENTENCES}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, test in _marks(path):
            if test not in shown[name]:
                shown[name].append(test)
    rows = [f"| {SENTENCES[name]} | {', '.join(f'`{test}`' for test in tests)} |" for name, tests in shown.items()]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def _marks(path: Path) -> Iterator[tuple[str, str]]:
    """(promise, file or test) of a file's marks, in order."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from ((name, str(path.relative_to(ROOT))) for name in _names([node.value]))
        if isinstance(node, ast.FunctionDef):
            yield from ((name, node.name) for name in _names(node.decorator_list))


def _names(values: Iterable[ast.expr]) -> Iterator[str]:
    for value in values:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{_MARK}":
                yield from (str(ast.literal_eval(argument)) for argument in node.args)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
