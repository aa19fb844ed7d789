"""The command line: help with an example for every verb, one sentence for every mistake, the right exit code."""

import errno
import json
import os
import subprocess
import sys

import pytest

from onefold.cli import main
from onefold.operate.errors import UserError
from onefold.stack import control


@pytest.mark.parametrize("verb", list(main.VERBS))
def test_the_help_of_every_verb_ends_in_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([verb, "--help"]) == 0
    text = capsys.readouterr().out
    description = text.split("Options:")[0].split("Arguments:")[0]
    assert "Example: " in description.rstrip().splitlines()[-1] or "Example: " in description.rstrip().splitlines()[-2]


def test_the_overview_lists_every_verb_with_a_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    for verb, line in main.VERBS.items():
        assert f"  {verb}" in text
        assert line in text


def test_the_overview_imports_no_verb() -> None:
    program = (
        "import sys; from onefold.cli import main; main.run(['--help']); "
        "heavy = ('onefold.cli.commands.', 'psycopg', 'confluent_kafka', 'pydantic'); "
        "sys.exit(any(name.startswith(heavy) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "arguments", [["upp"], ["up", "--nonsense"], ["verify"], ["produce", "runner.updates", "--count", "x"]]
)
def test_a_wrong_command_line_is_two_lines_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert len(told.strip().splitlines()) == 2


def test_an_error_is_a_json_object_for_a_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_PARTITIONS", "zero")
    assert main.run(["status", "--json"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert "ONEFOLD_PARTITIONS" in told["error"]
    assert told["exit_code"] == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["process", "nowhere"], "nowhere"),
        (["sink", "nowhere"], "nowhere"),
        (["produce", "no.topic"], "no.topic"),
        (["up", "--only", "kafka,redis"], "redis"),
    ],
)
def test_an_unknown_name_is_repeated_in_the_error(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_more_is_one_sentence(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(control, "up", full)
    assert main.run(["up"]) == 1
    told = capsys.readouterr().err
    assert os.strerror(number) in told
    assert told.startswith("error: ")


def test_a_user_error_prints_its_hint_below_its_message() -> None:
    assert UserError("it is so", "do this").as_text() == "error: it is so\n  do this"
    assert UserError("it is so").as_text() == "error: it is so"
