"""The command line: help with an example for every verb, one sentence for every mistake, the right exit code."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from onefold.cli import main
from onefold.exit_codes import USAGE
from onefold.operate.errors import UserError
from onefold.stack import control
from tests.support.verbs import COMMANDS


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_every_verb_ends_in_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    description = text.split("Options:")[0].split("Arguments:")[0]
    assert "Example: " in description.rstrip().splitlines()[-1] or "Example: " in description.rstrip().splitlines()[-2]


def test_the_overview_lists_every_verb_with_a_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    for verb, line in main.VERBS.items():
        assert f"  {verb}" in text
        assert line in text


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        ([], []),
        (["bench"], ["bench"]),
        (["bench", "latency"], ["bench", "bench.common", "bench.latency"]),
        (["status"], ["status"]),
    ],
)
def test_only_the_verb_that_was_asked_for_is_imported(words: list[str], imported: list[str]) -> None:
    """Help and completion are asked for often. Nor is a library that is only needed for the work."""
    program = (
        "import sys; from onefold.cli import main; main.run([*sys.argv[1:], '--help']); "
        "found = {name.partition('onefold.cli.commands.')[2] for name in sys.modules} - {''}; "
        "heavy = found and ('psycopg', 'confluent_kafka', 'pyspark') or ('psycopg', 'confluent_kafka', 'pydantic'); "
        "sys.stderr.write(' '.join(sorted(found | (sys.modules.keys() & set(heavy)))))"
    )
    ran = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True)
    assert ran.stderr.split() == imported


@pytest.mark.parametrize(
    ("words", "listed"), [([], main.VERBS), (["bench"], ("processor", "sink", "latency", "trades"))]
)
def test_a_group_alone_lists_what_is_in_it(
    words: list[str], listed: Iterable[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As help, whole, and not as an error; the exit code still says that nothing was done."""
    assert main.run(words) == USAGE
    told = capsys.readouterr().err
    assert told.startswith(f"Usage: {' '.join(['onefold', *words])} [OPTIONS] COMMAND")
    assert all(f"\n  {verb} " in told for verb in listed)
    assert main.run([*words, "--help"]) == 0
    assert capsys.readouterr().out == told


def test_a_subcommand_has_its_own_options_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", "processor", "--help"]) == 0
    options = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert options == {"--events", "--instances", "--domain", "--partitions", "--seed", "--json", "--help"}
    assert main.run(["bench", "processor", "--kills"]) == USAGE
    assert capsys.readouterr().err == "error: No such option: --kills\n  Try: onefold bench processor --help\n"


def test_a_verb_may_have_dashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is below it too: `dead-letters list`."""
    (tmp_path / "made_up_verbs" / "dead_letters").mkdir(parents=True)
    (tmp_path / "made_up_verbs" / "dead_letters" / "__init__.py").write_text("HELP = 'x'\nVERBS = {'list-all': 'y'}\n")
    (tmp_path / "made_up_verbs" / "dead_letters" / "list_all.py").write_text(
        "def command(n: int = 1) -> int: return n\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    top = main.group("made_up_verbs", {"dead-letters": "z"}, "")
    assert top.main(["dead-letters", "list-all", "--n", "7"], prog_name="x", standalone_mode=False) == 7


@pytest.mark.parametrize(
    "arguments",
    [["upp"], ["bench", "nothing"], ["up", "--nonsense"], ["verify"], ["produce", "runner.updates", "--count", "x"]],
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
