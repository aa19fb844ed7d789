"""`onefold new`: the project that it writes is small, clean and whole, and it never overwrites anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.cli import starter
from onefold.cli.main import run
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from tests.support.coded import code_of
from tests.support.rooms import ROOT

# Those of this repository's rules that are not about taste.
RULES = "A,ARG,B,BLE,C4,E,F,I,N,PIE,PT,PTH,RET,RUF,SIM,T20,UP,W"


def shell(folder: Path, *command: str) -> None:
    """Run a Python module in a folder, as somebody does who has Onefold installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD_", "PYTEST_"))}
    environment |= {"MYPYPATH": str(ROOT / "src")}
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder, env=environment | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, around which there is no project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONEFOLD_PROJECT", raising=False)
    return tmp_path


@pytest.mark.slow  # starts ruff, pytest or mypy
def test_a_new_project_is_clean_and_its_tests_pass(folder: Path) -> None:
    """By ruff with its own settings and with our rules, by `onefold check`, and by its own pytest."""
    (folder / ".git").mkdir()
    assert run(["new", "orders"]) == 0

    shell(folder, "ruff", "check", "--isolated", "--select", RULES, ".")
    shell(folder, "ruff", "format", "--isolated", "--check", ".")
    shell(folder, "onefold.cli.main", "check", "orders")
    shell(folder, "pytest", "-q")


@pytest.mark.slow  # starts ruff, pytest or mypy
def test_a_new_project_is_typed_strictly(folder: Path, request: pytest.FixtureRequest) -> None:
    """Whoever checks their own code finds nothing to mend in ours."""
    starter.write("orders", folder)
    cache = request.config.cache.mkdir("mypy-new") if request.config.cache else folder / ".mypy_cache"

    shell(folder, "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={cache}", *map(str, folder.glob("*.py")))


def test_the_tutorial_shows_what_is_written(folder: Path) -> None:
    """Its code is the project's, letter by letter; that of the last page is the example's."""
    starter.write("orders", folder)
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()]
    examples = ROOT / "examples"
    texts += [
        path.read_text(encoding="utf-8") for name in ("mails", "commands") for path in (examples / name).glob("*.py")
    ]

    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("tutorial.md", "pipeline.md"))
    code = re.findall(r"^```(?:python|sql)\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    assert len(code) >= 4
    assert [block for block in code if not any(block in text for text in texts)] == []


def test_nothing_of_the_template_is_left(folder: Path) -> None:
    """Neither in names nor in texts; and it is read in five minutes."""
    files = starter.write("parcels_2", folder / "deep" / "er")

    written = [path for path in (folder / "deep" / "er").rglob("*") if path.is_file()]
    texts = [str(path) + path.read_text(encoding="utf-8") for path in written]
    assert len(files) == len(written) > 8
    assert not any(word in text for text in texts for word in (starter.PLACEHOLDER, "dot_"))
    assert sum(len(text.splitlines()) for text in texts) < 350


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Orders", "small letters"),
        ("my-orders", "small letters"),
        ("../orders", "small letters"),
        ("1st", "small letters"),
        ("o" * 64, "at most 63"),
        ("_orders", "small letter first"),
        ("order", "PostgreSQL"),
        ("public", "PostgreSQL"),
        ("pg_orders", "PostgreSQL"),
        ("async", "Python"),
        ("avro", "folder"),
        ("queue", "module"),
        ("onefold", "engine's own"),
        ("campaigns", "declared in"),
    ],
)
def test_a_bad_name_is_one_sentence(name: str, why: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is written."""
    assert run(["new", name]) == USAGE

    said = capsys.readouterr().err
    assert why in said.splitlines()[0]
    assert len(said.splitlines()) <= 2
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("there", ["notes.txt", ".gitignore", ".github/workflows/ci.yml"])
def test_what_is_there_is_never_overwritten(there: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in the working folder nor in another one."""
    (folder / "shop" / there).parent.mkdir(parents=True)
    (folder / "shop" / there).write_text("mine", encoding="utf-8")

    assert run(["new", "orders", "--into", "shop"]) == USAGE

    assert code_of(capsys.readouterr().err, Path(there).name) is Code.NAME_TAKEN
    assert [path for path in (folder / "shop").rglob("*") if path.is_file()] == [folder / "shop" / there]
    assert (folder / "shop" / there).read_text(encoding="utf-8") == "mine"


def test_a_file_is_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shop").write_text("mine", encoding="utf-8")

    assert run(["new", "orders", "--into", "shop"]) == USAGE
    assert code_of(capsys.readouterr().err) is Code.NAME_TAKEN
