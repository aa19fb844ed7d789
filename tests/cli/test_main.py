"""The command line: help with an example for every verb, one sentence for every mistake, the right exit code."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from onefold import postgres
from onefold.cli import main
from onefold.config.errors import UserError
from onefold.error_codes import Code, CodedError
from onefold.exit_codes import FAILED, REFUSED, UNAVAILABLE, USAGE
from onefold.processor.core import errors as processor
from onefold.stack import control
from tests.support.coded import code_of
from tests.support.rooms import LINKED
from tests.support.verbs import COMMANDS, example, loaded, parsed


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_every_verb_ends_in_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    description = text.split("Options:")[0].split("Arguments:")[0]
    assert "Example: " in description.rstrip().splitlines()[-1] or "Example: " in description.rstrip().splitlines()[-2]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_example_of_every_verb_is_a_command_line_of_it(words: tuple[str, ...]) -> None:
    """With arguments and options that it has, and none that it lacks. A group's is of a verb in it."""
    found = [*parsed(example(words))]
    assert any(shown[: len(words)] == words for shown, _ in found), example(words)
    for shown, arguments in found:
        loaded(shown).make_context(" ".join(shown), arguments)


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
    ran = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, encoding="utf-8")
    assert ran.stderr.split() == imported


@pytest.mark.slow  # starts a process a case
@pytest.mark.parametrize("verb", sorted(main.SERVICES))
def test_a_service_starts_without_what_draws_on_a_terminal(verb: str) -> None:
    """It is started again after a kill, while others wait for it. Afterwards rich can be had, as by a user's handler."""
    program = (
        "import sys; from onefold.cli import main; main.load(main.COMMANDS, sys.argv[1]); "
        "print('structlog' in sys.modules, 'rich' in sys.modules); import rich"
    )
    ran = subprocess.run([sys.executable, "-c", program, verb], capture_output=True, encoding="utf-8", check=True)
    assert ran.stdout == "True False\n"


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        ([], main.VERBS),
        (["bench"], ("processor", "peers", "sink", "latency", "hot-hot")),
        (["trades"], ("evaluate",)),
    ],
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
    options = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    known = {"--events", "--instances", "--metrics", "--pipeline", "--partitions", "--seed", "--json", "--help"}
    assert options == known
    assert main.run(["bench", "processor", "--kills"]) == USAGE
    assert capsys.readouterr().err == "error OF-101: No such option: --kills\n  Try: onefold bench processor --help\n"


@pytest.mark.parametrize(("noun", "verb"), [("dead-letters", "list"), ("dead-letters", "list-all"), ("state", "get")])
def test_a_noun_has_verbs(noun: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package for the noun, a module for each of its verbs; both may have dashes."""
    package = f"made_up_{noun}_{verb}".replace("-", "_")
    folder = tmp_path / package / noun.replace("-", "_")
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(f"HELP = 'x'\nVERBS = {{'{verb}': 'y'}}\n", encoding="utf-8")
    (folder / f"{verb.replace('-', '_')}.py").write_text("def command(n: int = 1) -> int: return n\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    top = main.group(package, {noun: "z"}, "")
    assert top.main([noun, verb, "--n", "7"], prog_name="x", standalone_mode=False) == 7


@pytest.mark.parametrize(
    "arguments",
    [["upp"], ["bench", "nothing"], ["up", "--nonsense"], ["verify"], ["produce", "runner.updates", "--count", "x"]],
)
def test_a_wrong_command_line_is_two_lines_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("error OF-10")
    assert len(told.strip().splitlines()) == 2


def test_an_error_is_a_json_object_for_a_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_PARTITIONS", "zero")
    assert main.run(["status", "--json"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert "ONEFOLD_PARTITIONS" in told["error"]
    assert told["code"] == str(Code.SETTING_WRONG)
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
    assert code_of(told, os.strerror(number)) is Code.DISK_FULL


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (postgres.Unfit("the database has the encoding LATIN1", "Make another one."), USAGE, "Make another one."),
        (UserError(Code.TOPIC_MISSING, "there is no topic", exit_code=UNAVAILABLE), UNAVAILABLE, ""),
        (processor.Misconfigured(Code.PIPELINE_WRONG, "no handler"), USAGE, ""),
        (processor.Forbidden(Code.KAFKA_RIGHT, "no right"), REFUSED, ""),
        (processor.Unauthenticated(Code.KAFKA_LOGIN, "no login"), REFUSED, ""),
        (processor.Retriable(Code.KAFKA_SILENT, "no answer"), UNAVAILABLE, ""),
        (processor.Corrupted(Code.CHANGELOG_WRONG, "no sense"), FAILED, ""),
        (processor.Refused(Code.RECORDS_LOST, "no records"), REFUSED, ""),
    ],
)
def test_an_error_with_a_code_is_a_sentence_with_its_exit_code(
    error: CodedError, code: int, hint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise error

    monkeypatch.setattr(control, "up", fails)
    assert main.run(["up"]) == code
    assert capsys.readouterr().err == f"error {error.code}: {error}\n" + (f"  {hint}\n" if hint else "")


def test_a_user_error_prints_its_hint_below_its_message() -> None:
    assert UserError(Code.ARGUMENT_WRONG, "it is so", "do this").as_text() == "error OF-101: it is so\n  do this"
    assert UserError(Code.ARGUMENT_WRONG, "it is so").as_text() == "error OF-101: it is so"


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["bench", "-h"]])
def test_help_has_a_short_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 0
    assert ("Commands:" if "bench" in arguments else "Inspect:") in capsys.readouterr().out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_verb_knows_the_short_help_unless_it_hands_its_options_on(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """-h is psql's host, and pytest's own help."""
    settings = loaded(words).context_settings
    if settings.get("ignore_unknown_options"):
        assert "help_option_names" not in settings
    else:
        assert main.run([*words, "-h"]) == 0
        assert f"onefold {' '.join(words)}" in capsys.readouterr().out


@pytest.mark.slow  # starts a process
def test_what_only_a_checkout_has_is_no_verb_elsewhere(tmp_path: Path) -> None:
    """An installed package has no tests."""
    package = tmp_path / "onefold"
    package.mkdir()
    for found in (Path(__file__).parents[2] / "src" / "onefold").iterdir():
        if found.name == "cli":
            shutil.copytree(found, package / "cli")
        else:
            (package / found.name).symlink_to(found.resolve())
    program = "import sys; sys.path.insert(0, sys.argv[1]); from onefold.cli import main; print(*main.VERBS)"
    ran = subprocess.run([sys.executable, "-P", "-c", program, str(tmp_path)], capture_output=True, encoding="utf-8")
    assert ran.returncode == 0, ran.stderr
    assert main.VERBS.keys() - set(ran.stdout.split()) == {"test", "lint"}


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    """It stands in pyproject.toml and nowhere else."""
    root = Path(__file__).parents[2]
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"onefold {version}\n"
    code = [path for room in ("src/onefold", *LINKED) for path in (root / room).rglob("*.py")]
    assert [path.name for path in code if version in path.read_text(encoding="utf-8")] == []


def completed(line: str, home: Path) -> list[str]:
    """What a shell offers at the end of a line."""
    words = line.split(" ")
    asked = {"_ONEFOLD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    program = [sys.executable, "-m", "onefold.cli.main"]
    ran = subprocess.run(program, env={**os.environ, **asked, "HOME": str(home)}, capture_output=True, encoding="utf-8")
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.slow  # starts a process for each completion
def test_a_shell_completes_verbs_and_their_options(tmp_path: Path) -> None:
    """A verb's options are known only when its module is loaded."""
    assert completed("onefold ver", tmp_path) == ["verify"]
    assert "--partitions" not in completed("onefold produce --", tmp_path)
    assert {"--count", "--file"} <= set(completed("onefold produce --", tmp_path))


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_the_completion_installs_itself(shell: str, file: str, tmp_path: Path) -> None:
    program = f"from onefold.cli import main; import sys; sys.exit(main.run(['--install-completion', {shell!r}]))"
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, encoding="utf-8")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / file).exists()
    assert "onefold" in "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file())


# A thread that waits, and something that tells when the interpreter is taken down under it.
_WITH_A_THREAD = """
import atexit, sys, threading
from onefold.cli import process

class Told:
    def __del__(self, write=sys.stderr.write):
        write("taken down")

end = process.prepare_end()
told = Told()
atexit.register(print, "registered")
if {daemon}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.stdout.write("said\\n")
{last}
"""


@pytest.mark.parametrize(
    ("daemon", "last", "code", "said"),
    [
        (True, "end(0)", 0, ""),
        (True, "end(69)", 69, ""),
        (True, "raise ValueError(5)", 1, "ValueError: 5"),
        (False, "end(69)", 69, "taken down"),
    ],
)
def test_the_interpreter_is_not_taken_down_under_a_thread(daemon: bool, last: str, code: int, said: str) -> None:
    """Seen once in CI: Ctrl-C while a client waited for a dead server, and the process aborted while it ended."""
    program = _WITH_A_THREAD.format(daemon=daemon, last=last)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=30, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ran.stdout == "said\nregistered\n"
    assert ran.stderr.rstrip().endswith(said)
    assert ("taken down" in ran.stderr) is (not daemon)
