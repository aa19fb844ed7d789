"""Commands that installed packages bring by the entry points `onefold.commands`."""

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onefold.cli import extras, main, plugins
from onefold.error_codes import Code
from onefold.exit_codes import OK, USAGE
from tests.support.coded import code_of
from tests.support.rooms import ROOT

Install = Callable[..., None]

GREETS = '''
import typer

def command(name: str, loud: bool = False) -> None:
    """Greet somebody.

    Example: onefold greet Ann
    """
    typer.echo(name.upper() if loud else name)
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with such entry points and such files, as pip would."""

    def put(package: str, points: dict[str, str], files: dict[str, str]) -> None:
        place = tmp_path / package
        metadata = place / f"{package}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        lines = [f"{verb} = {module}" for verb, module in points.items()]
        (metadata / "entry_points.txt").write_text("\n".join(["[onefold.commands]", *lines]), encoding="utf-8")
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(place)

    before = {*sys.modules}
    yield put
    for name in sys.modules.keys() - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_names_of_earlier_releases_and_of_onefold_are_taken(install: Install) -> None:
    """A command that could never run is not in the overview, and no package takes `sheets`."""
    install("aaa", {"ps": "hello_command", "prepare": "hello_command", "sheets": "hello_command"}, {})
    found = plugins.found()
    assert not {"ps", "prepare"} & found.keys()
    assert found["sheets"].value == "onefold.jobs.apps.sheets.commands"


def test_a_package_brings_a_command(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """The overview names it without an import: a package that takes long to load keeps nobody waiting."""
    install("hello", {"greet": "hello_command"}, {"hello_command.py": GREETS})
    assert main.run(["greet", "Ann", "--loud"]) == OK
    assert capsys.readouterr().out == "ANN\n"
    assert main.run(["greet", "--help"]) == OK
    assert "Example: onefold greet Ann" in capsys.readouterr().out
    assert main.run(["--help"]) == OK
    assert "Of installed packages:\n  greet   A command of the package hello.\n  sheets  " in capsys.readouterr().out
    assert main.run(["greet"]) == USAGE
    assert code_of(capsys.readouterr().err, "name", "onefold greet --help") is Code.ARGUMENT_WRONG


def test_the_example_of_the_page_is_a_command(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8").partition("## Commands of your own")[2]
    points, code = re.findall(r"```(?:toml|python)\n(.*?)```", page, re.DOTALL)
    ((group, declared),) = tomllib.loads(points)["project"]["entry-points"].items()
    install("shop", declared, {"shop/__init__.py": "", "shop/overdue.py": code})
    assert group == plugins.GROUP
    assert main.run(["overdue", "ann", "--days", "14"]) == OK
    assert capsys.readouterr().out == "no order of ann is older than 14 days\n"


def test_a_package_brings_a_group_of_commands(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """As a noun of Onefold's own has verbs, here with a dash."""
    head = 'HELP = "Be polite."\nVERBS = {"say-hello": "Greet."}\n'
    install("polite", {"be": "polite"}, {"polite/__init__.py": head, "polite/say_hello.py": GREETS})
    assert main.run(["be", "say-hello", "Ann"]) == OK
    assert capsys.readouterr().out == "Ann\n"
    assert main.run(["be", "--help"]) == OK
    assert "  say-hello  Greet." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "ModuleNotFoundError: No module named 'broken_command'"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def command(:", "SyntaxError"),
        ("raise RuntimeError('first\\nsecond')", "RuntimeError: first"),
        ("x = 1", "neither a function `command` nor HELP and VERBS"),
        ("VERBS = {}", "neither a function `command` nor HELP and VERBS"),
    ],
)
def test_a_command_that_does_not_load_is_one_sentence_and_the_others_work(
    text: str | None, why: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("broken", {"wrong": "broken_command"}, {} if text is None else {"broken_command.py": text})
    assert main.run(["wrong"]) == USAGE
    told = capsys.readouterr().err
    assert code_of(told, "the command wrong cannot be used: broken_command: ", why) is Code.COMMAND_WRONG
    assert len(told.splitlines()) == 2
    assert main.run(["--help"]) == OK
    assert main.run(["status", "--help"]) == OK
    assert main.run(["sheets", "--help"]) == OK


def test_a_part_that_does_not_load_is_one_sentence(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    head = 'HELP = "Half."\nVERBS = {"one": "Works.", "two": "Does not."}\n'
    install("half", {"half": "half"}, {"half/__init__.py": head, "half/one.py": GREETS, "half/two.py": "1 / 0"})
    assert main.run(["half", "one", "Ann"]) == OK
    assert main.run(["half", "two"]) == USAGE
    assert code_of(capsys.readouterr().err, "half.two: ZeroDivisionError") is Code.COMMAND_WRONG


def test_no_package_takes_the_place_of_a_command_of_onefold(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """And of two packages with one verb it is always the same that has it."""
    install("hello", {"status": "hello_command", "greet": "hello_command"}, {"hello_command.py": GREETS})
    install("another", {"greet": "another_command"}, {"another_command.py": GREETS.replace("name.upper()", "'no'")})
    assert main.run(["status", "--help"]) == OK
    assert "Show the services" in capsys.readouterr().out
    assert main.run(["greet", "Ann", "--loud"]) == OK
    assert capsys.readouterr().out == "no\n"


def test_a_command_says_which_extras_it_works_with(install: Install) -> None:
    """Once it is loaded; and a command without a word on it needs none."""
    install("hungry", {"eat": "hungry_command"}, {"hungry_command.py": f"NEEDS = ('jobs', 's3')\n{GREETS}"})
    assert plugins.needs("eat") == ()
    plugins.load("hungry_command", "eat")
    assert plugins.needs("eat") == ("jobs", "s3")
    missing = extras.explain("eat", ModuleNotFoundError(name="psycopg"))  # which the sink needs too
    assert missing is not None
    assert "onefold eat needs psycopg: " in missing.message
    assert ".whl[jobs]'" in missing.message
    assert plugins.needs("nobody") == ()


def test_commands_of_onefold_look_for_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for them takes as long as the start of a command."""
    monkeypatch.setattr(plugins, "found", lambda: pytest.fail("it was looked for"))
    assert main.run(["status", "--help"]) == OK
