"""The documents agree with the program: verbs, settings, files, links."""

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onefold import exit_codes
from onefold.cli.main import run
from onefold.cli.starter import PLACEHOLDER, TEMPLATE
from onefold.operate.guarantee import RULES
from onefold.operate.settings import PREFIX, Settings
from tests.support.rooms import PACKAGE, ROOMS, ROOT, modules, nodes
from tests.support.verbs import COMMANDS

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PROSE = {page: page.read_text(encoding="utf-8") for page in PAGES}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_verb_has_help_with_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """And stands in the documents."""
    assert run([*words, "--help"]) == 0
    written = " ".join(words)
    assert f"onefold {written}" in " ".join(capsys.readouterr().out.partition("Example:")[2].split())
    assert any(re.search(rf"onefold[ `]{written}\b|`{written}`", text) for text in PROSE.values())


def test_every_verb_that_is_written_exists() -> None:
    """In a command that a reader would paste; of a group also the word after it."""
    groups = "|".join({words[0] for words in COMMANDS if len(words) > 1})
    written = {
        tuple(found.split())
        for text in PROSE.values()
        for found in re.findall(rf"(?:^|\./|`)onefold ((?:{groups}) [a-z][a-z-]*|[a-z][a-z-]*)", text, re.MULTILINE)
    }

    assert set() == written - set(COMMANDS)


def test_every_option_that_is_written_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the verb that it is written with, up to the next command of the line. Decisions tell of their own time."""
    passed_on = {("test",), ("kafka",), ("sql",)}  # to pytest, Kafka's tools and psql
    command = re.compile(r"(?:^|`)(?:\./)?onefold ([^`|>;&#\n]+)", re.MULTILINE)
    for page in (page for page in PAGES if page.parent.name != "decisions"):
        for found in command.findall(PROSE[page]):
            words = tuple(found.split())
            verbs = [verb for verb in COMMANDS if words[: len(verb)] == verb and verb not in passed_on]
            written = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
            if verbs and written:
                assert run([*max(verbs, key=len), "--help"]) == 0
                assert written <= set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)), (page.name, found)


def test_no_command_that_is_written_has_a_password_among_its_arguments() -> None:
    """Every account of a machine reads arguments in `ps`. What is assigned before a command is in its environment alone."""
    secret = re.compile(r"://[^\s/:@]+:[^\s/@]+@|PASSWORD=|--show-password[^`\n]*\)|\bpassword=", re.IGNORECASE)
    assigned = re.compile(r"^\s*(?:export\s+.*|(?:[A-Z_]+=(?:\"[^\"]*\"|'[^']*'|\S*)(?:\s+|$))+)")
    command = re.compile(r"```(?:sh|bash)?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
    for page, text in PROSE.items():
        lines = [line for found in command.findall(text) for line in "".join(found).splitlines()]
        commands = [rest for line in lines if re.match(r"(\./)?[a-z][\w.-]* ", rest := assigned.sub("", line).lstrip())]
        assert [line for line in commands if secret.search(line)] == [], page.name


def test_every_setting_is_documented_and_the_other_way_round() -> None:
    """In docs/operating.md."""
    documented = set(re.findall(rf"`({PREFIX}[A-Z_]+)`", PROSE[ROOT / "docs" / "operating.md"]))

    assert {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} == documented


def test_every_rule_of_the_guarantee_is_documented_and_the_other_way_round() -> None:
    """By the name that allows it, and with what it does, in the order of the table."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (breaks|weakens) \|", PROSE[ROOT / "docs" / "operating.md"], re.MULTILINE)

    assert [(rule.name, "breaks" if rule.breaks else "weakens") for rule in RULES] == rows


def test_every_exit_code_is_documented_and_the_other_way_round() -> None:
    """By number and name, in docs/operating.md."""
    rows = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \| \S", PROSE[ROOT / "docs" / "operating.md"], re.MULTILINE)

    assert {(str(code), name) for name, code in vars(exit_codes).items() if name.isupper()} == set(rows)


def test_every_variable_of_the_compose_file_is_documented() -> None:
    """In the same page, with the default that it has; what is passed on as it is, too."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    found = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    found |= dict.fromkeys(re.findall(r"^ +([A-Z_]+):$", text, re.MULTILINE), "")
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|", PROSE[ROOT / "docs" / "operating.md"], re.MULTILINE)
    documented = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}

    assert found.keys() <= documented.keys()
    for name, default in found.items():
        assert default.split("/")[0] in documented[name], name


def test_every_merge_names_what_it_reads() -> None:
    """What takes the place of `:stage` is a query in brackets, which has to have a name before PostgreSQL 16."""
    files = (*ROOT.glob("sql/merge/*.sql"), *TEMPLATE.glob("sql/merge/*.sql"))
    for text in (PROSE[ROOT / "docs" / "pipeline.md"], *(path.read_text(encoding="utf-8") for path in files)):
        assert re.search(r"FROM :stage AS \w+", text)
        assert not re.search(r"FROM :stage(?! AS)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page: Path) -> None:
    """Links of a page, and every file of the repository that it names."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PROSE[page]):
        assert (page.parent / target).exists(), target
    folders = "|".join((*ROOMS, "avro", "docs", "sql", "src", "tests"))
    for name in re.findall(rf"`((?:{folders})/[\w/.]+\.\w+)`", PROSE[page]):
        assert (ROOT / name).exists() or (TEMPLATE / name.replace("orders", PLACEHOLDER)).exists(), name


def test_every_page_that_a_message_names_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`onefold docs` has it, in a checkout and by what a wheel is made of; and no message names a file of the checkout."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    packed = {Path(name).stem for name in wheel["force-include"]}
    files = [path for name, path in modules().items() if name.startswith(PACKAGE)]
    docstrings = {id(node.value) for path in files for node in nodes(path) if isinstance(node, ast.Expr)}
    texts = {
        (path, node.value)
        for path in files
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    }
    named = {page for _, text in texts for page in re.findall(r"`onefold docs ([a-z-]+)`", text)}

    assert [f"{path}: {text}" for path, text in texts if re.search(r"docs/[a-z-]+\.md", text)] == []
    assert packed == {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {"operating", "jobs", "evolution"} <= named <= packed
    for page in named:
        assert run(["docs", page]) == 0
        assert capsys.readouterr().out.startswith("# ")


def test_every_test_that_is_promised_exists() -> None:
    """A promise without its test is an advertisement."""
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for page in (ROOT / "README.md", ROOT / "docs" / "promises.md", ROOT / "docs" / "design.md"):
        for name in re.findall(r"`(test_\w+)`", PROSE[page]):
            assert f"def {name}(" in tests, name


def test_the_readme_promises_ten_things_each_with_its_test() -> None:
    """Short enough to be read, and nothing that is said without one."""
    readme = "| guarantee | test | limit |\n|---|---|---|\n"
    promises = "| promise | test |\n|---|---|\n"
    for page, head, at_least in ((ROOT / "README.md", readme, 10), (ROOT / "docs" / "promises.md", promises, 20)):
        rows = PROSE[page].partition(head)[2].partition("\n\n")[0].splitlines()

        assert len(rows) >= at_least
        assert all(re.search(r"`(tests/[\w/]+\.py|test_\w+)`", row.split(" | ")[1]) for row in rows)
    assert len(PROSE[ROOT / "README.md"].splitlines()) <= 110


def test_the_readme_shows_files_that_run() -> None:
    """Its two files are those of docs/examples/first, letter by letter, and the second one prints what the README says."""
    folder = ROOT / "docs" / "examples" / "first"
    text = PROSE[ROOT / "README.md"]
    shown = re.findall(r"^```python\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)
    printed = re.findall(r"^```\n(\{.*?)^```\n", text, re.MULTILINE | re.DOTALL)

    assert shown == [(folder / name).read_text(encoding="utf-8") for name in ("orders.py", "crash.py")]
    ran = subprocess.run(
        [sys.executable, "crash.py"], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, encoding="utf-8", check=True, timeout=60,
    )  # fmt: skip
    assert [ran.stdout] == printed


def test_the_download_that_is_documented_is_the_one_of_the_front_door() -> None:
    """README and docs/install.md say how many packages and megabytes the first run takes."""
    door = runpy.run_path(str(ROOT / "onefold"), run_name="imported")
    every = sorted(door["lock_entries"]())
    for names, pages in (
        (set(every) - door["left_out"](), ("README.md", "docs/install.md")),
        (every, ("docs/install.md",)),
    ):
        megabytes = sum(door["SIZES"].get(name, door["SMALL"]) for name in names) // 1_000_000
        for page in pages:
            assert re.search(rf"\b{len(names)} (Python )?packages(?: \(|, ){megabytes} MB", PROSE[ROOT / page]), (
                page,
                names,
            )
