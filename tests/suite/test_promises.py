"""A promise without a test that ran and passed is an advertisement, and fails a whole run."""

import subprocess
from pathlib import Path

import pytest

from tests.support.own_pytest import own_pytest
from tests.support.promises import SENTENCES

pytestmark = pytest.mark.slow  # starts a process a test

FIRST, SECOND, *OTHERS = SENTENCES


def run(folder: Path, tests: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_text(
        "import pytest\n"
        "from tests.support import promises\n"
        "pytest_plugins = ['tests.support.needs', 'tests.support.promises']\n"
        f"for name in {OTHERS!r}:\n    del promises.SENTENCES[name]\n",
        encoding="utf-8",
    )
    (folder / "test_it.py").write_text(f"import pytest\n{tests}", encoding="utf-8")
    return own_pytest(folder, "-W", "ignore", *options)


BOTH = f"""
@pytest.mark.promise({FIRST!r})
def test_first(): pass
@pytest.mark.promise({SECOND!r})
def test_second(): pass
"""
SKIPPED = BOTH.replace("def test_second(): pass", "def test_second(): pytest.skip('not here')")
PARTLY = f"{SKIPPED}@pytest.mark.promise({SECOND!r})\ndef test_third(): pass\n"


@pytest.mark.parametrize("tests", [BOTH, PARTLY], ids=["all", "one of two tests is skipped"])
def test_a_whole_run_that_shows_every_promise_passes(tests: str, tmp_path: Path) -> None:
    ran = run(tmp_path, tests)
    assert ran.returncode == 0, ran.stdout
    assert "2 promises, each with a test that passed" in ran.stdout


@pytest.mark.long  # 21 s
@pytest.mark.parametrize(
    "tests",
    [BOTH.replace(repr(SECOND), repr(FIRST)), SKIPPED],
    ids=["nobody shows it", "its test is skipped"],
)
@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["here", "shared"])
def test_a_promise_that_nobody_shows_fails_the_run(tests: str, options: list[str], tmp_path: Path) -> None:
    ran = run(tmp_path, tests, *options)
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout
    missing = ran.stdout.partition("promises that no test has shown")[2]
    assert SENTENCES[SECOND] in missing
    assert SENTENCES[FIRST] not in missing


def test_a_run_of_some_tests_says_nothing_of_promises(tmp_path: Path) -> None:
    ran = run(tmp_path, BOTH, "-k", "first")
    assert ran.returncode == 0, ran.stdout
    assert "promise" not in ran.stdout


def test_a_promise_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    ran = run(tmp_path, BOTH.replace(FIRST, "made-up"))
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR, ran.stdout
    assert "tests/promises.toml has no promise made-up" in ran.stdout + ran.stderr
