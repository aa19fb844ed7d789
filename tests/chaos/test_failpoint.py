"""The fault point kills the process that reaches it, at the hit that was asked for, with nothing in between."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.chaos import failpoint
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.processor.core.steps import DISK_STEPS, REPLICA_STEPS, STEPS
from onefold.spark_sink.landing.steps import STEPS as SINK_STEPS
from tests.support.coded import raises

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "docker-compose.yml", *sorted((ROOT / "docs").rglob("*.md"))]

PROGRAM = """
from onefold.chaos import failpoint
step = failpoint.from_environment()
for number in range(5):
    step("before_commit")
    print(number, flush=True)
    step("after_commit")
"""


def test_it_kills_at_the_nth_hit_of_its_name_only() -> None:
    environment = {**os.environ, failpoint.VARIABLE: "after_commit:3"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2"]


def test_without_the_variable_nothing_happens() -> None:
    step = failpoint.from_environment({})
    step("after_commit")


@pytest.mark.parametrize("value", ["after_open", "after_open:", ":3", "after_open:0", "after_open:-1", "after_open:x"])
def test_a_broken_value_is_one_sentence(value: str) -> None:
    with raises(UserError, Code.SETTING_WRONG, failpoint.VARIABLE) as caught:
        failpoint.from_environment({failpoint.VARIABLE: value})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["before-commit:3", "nowhere:1", "sink.nowhere:1"])
def test_a_step_that_no_code_takes_is_refused_with_a_list_of_those_that_there_are(value: str) -> None:
    """It would never be reached, and a test that waits for the crash would prove nothing."""
    with raises(UserError, Code.SETTING_WRONG, f"{value.partition(':')[0]}") as caught:
        failpoint.from_environment({failpoint.VARIABLE: value})
    assert caught.value.exit_code == 2
    assert all(name in caught.value.hint for name in failpoint.steps())


def test_what_an_error_recommends_works() -> None:
    with pytest.raises(UserError) as caught:
        failpoint.from_environment({failpoint.VARIABLE: "x"})
    failpoint.from_environment({failpoint.VARIABLE: caught.value.message.rpartition(" ")[2]})


def taken(room: str) -> Iterator[str]:
    """The names of the steps that the code of a room takes."""
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                    if called.lstrip("_") == "step":
                        yield name


@pytest.mark.parametrize(
    ("room", "known"), [("processor", tuple({*STEPS, *DISK_STEPS, *REPLICA_STEPS})), ("spark_sink", SINK_STEPS)]
)
def test_the_known_steps_are_those_that_the_code_takes(room: str, known: tuple[str, ...]) -> None:
    assert sorted(known) == sorted(set(taken(room)))


def test_documents_name_steps_that_there_are() -> None:
    named = [
        value
        for path in DOCUMENTS
        for value in re.findall(rf"{failpoint.VARIABLE}=[\"']?([\w.:-]+)", path.read_text(encoding="utf-8"))
    ]
    assert named, "no document shows how to use it"
    for value in named:
        failpoint.from_environment({failpoint.VARIABLE: value})
