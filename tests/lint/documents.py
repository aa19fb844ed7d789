"""The documents agree with the program: verbs, options, settings, files, links, promises. Each rule yields its complaints."""

import contextlib
import importlib
import inspect
import io
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from onefold import exit_codes as codes
from onefold.cli.main import run
from onefold.cli.names import ALIASES, FORMER
from onefold.cli.starter import PLACEHOLDER, TEMPLATE
from onefold.config.guarantee import RULES as GUARANTEES
from onefold.config.setting_sources import variable
from onefold.config.settings import PREFIX, Settings
from onefold.error_codes import Code
from tests.lint.source import Source, place
from tests.support import api, commands, error_codes, image_packages, promises
from tests.support.rooms import LINKED, ROOT
from tests.support.verbs import COMMANDS

_SETTINGS, _GUARANTEE = "docs/settings.md", "docs/guarantee.md"
#: Requirements may differ by Python.
IMAGES_PYTHON = (3, 11)
_README_LINES = 110  # what a newcomer reads at a sitting


def _help(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as written:
        assert run([*words, "--help"]) == 0
    return written.getvalue()


def verbs(source: Source) -> Iterator[str]:
    """Each has help with an example, and stands in a page; each that a page has exists."""
    for words in COMMANDS:
        name = " ".join(words)
        if f"onefold {name}" not in " ".join(_help(*words).partition("Example:")[2].split()):
            yield f"onefold {name} --help: has no example of itself"
        if not any(re.search(rf"onefold[ `]{name}\b|`{name}`", text) for text in source.pages.values()):
            yield f"onefold {name}: stands in no page"
    groups = "|".join({words[0] for words in COMMANDS if len(words) > 1})
    for path, text in source.pages.items():
        written = rf"(?:^|\./|`)onefold ((?:{groups}) [a-z][a-z-]*|[a-z][a-z-]*)"
        for found in re.findall(written, text, re.MULTILINE):
            words = tuple(found.split())
            if words not in COMMANDS and not {words, words[:1]} & FORMER.keys() and found not in ALIASES:
                yield f"{place(path)}: onefold {found} does not exist"


def options(source: Source) -> Iterator[str]:
    """Of the verb that they are written with, up to the next command of the line. Decisions tell of their own time."""
    passed_on = {("test",), ("kafka",), ("sql",)}  # to pytest, Kafka's tools and psql
    command = re.compile(r"(?:^|`)(?:\./)?onefold ([^`|>;&#\n]+)", re.MULTILINE)
    for path, text in source.pages.items():
        for found in command.findall(text) if path.parent.name != "decisions" else ():
            words = tuple(found.split())
            known = [verb for verb in COMMANDS if words[: len(verb)] == verb and verb not in passed_on]
            written = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
            if known and written:
                exist = set(re.findall(r"--[a-z][a-z-]*", _help(*max(known, key=len))))
                yield from (f"{place(path)}: onefold {found}: there is no {name}" for name in written - exist)


def passwords_in_arguments(source: Source) -> Iterator[str]:
    """Every account of a machine reads arguments in `ps`. What is assigned before a command is in its environment alone."""
    secret = re.compile(r"://[^\s/:@]+:[^\s/@]+@|PASSWORD=|--show-password[^`\n]*\)|\bpassword=", re.IGNORECASE)
    assigned = re.compile(r"^\s*(?:export\s+.*|(?:[A-Z_]+=(?:\"[^\"]*\"|'[^']*'|\S*)(?:\s+|$))+)")
    command = re.compile(r"```(?:sh|bash)?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
    for path, text in source.pages.items():
        lines = [line for found in command.findall(text) for line in "".join(found).splitlines()]
        commands = [rest for line in lines if re.match(r"(\./)?[a-z][\w.-]* ", rest := assigned.sub("", line).lstrip())]
        yield from (
            f"{place(path)}: {line}: every account reads this password" for line in commands if secret.search(line)
        )


def settings(source: Source) -> Iterator[str]:
    """Each stands in docs/settings.md, and no other; so do the exit codes, and the rules of docs/guarantee.md."""
    text = source.page(_SETTINGS)
    tables: dict[str, tuple[set[object], set[object]]] = {
        "setting": ({variable(PREFIX, name) for name in Settings.model_fields},
                    set(re.findall(rf"`({PREFIX}[A-Z_]+(?:<[A-Z_]+>)?)`", text))),
        "guarantee": ({(rule.name, "breaks" if rule.breaks else "weakens") for rule in GUARANTEES},
                      set(re.findall(r"^\| `([a-z_]+)` \| (breaks|weakens) \|", source.page(_GUARANTEE), re.MULTILINE))),
        "exit code": ({(str(code), name) for name, code in vars(codes).items() if name.isupper()},
                      set(re.findall(r"^\| (\d+) \| `([A-Z_]+)` \| \S", text, re.MULTILINE))),
    }  # fmt: skip
    for kind, (exist, documented) in tables.items():
        yield from (f"{_SETTINGS}: the {kind} {one} is missing, there or in {_GUARANTEE}" for one in exist - documented)
        yield from (f"{_SETTINGS}: there is no {kind} {one}" for one in documented - exist)


def variables_of_compose(source: Source) -> Iterator[str]:
    """Each of docker-compose.yml with its default, in docs/settings.md."""
    text = source.page("docker-compose.yml")
    found = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    found |= dict.fromkeys(re.findall(r"^ +([A-Z_]+):$", text, re.MULTILINE), "")
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|", source.page(_SETTINGS), re.MULTILINE)
    documented = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    for name, given in found.items():
        default = given.removeprefix("${").partition(":-")[0]  # of another variable its name
        if name not in documented or default.split("/")[0] not in documented[name]:
            yield f"{_SETTINGS}: {name} of docker-compose.yml is missing, or has another default"


def names_in_merges(source: Source) -> Iterator[str]:
    """What takes the place of `:stage` is a query in brackets, which has to have a name before PostgreSQL 16."""
    for path, text in source.files.items():
        missing = path.suffix == ".sql" and "FROM :stage AS" not in text
        of_merges = "merge" in path.parts or path == ROOT / "docs" / "pipeline.md"
        if of_merges and (missing or re.search(r"FROM :stage(?! AS)", text)):
            yield f"{place(path)}: write FROM :stage AS name"


def links_and_files(source: Source) -> Iterator[str]:
    """Links of a page, and every file of the repository that it names."""
    folders = "|".join((*LINKED, "avro", "docs", "examples", "sql", "src", "tests"))
    for path, text in source.pages.items():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not (path.parent / target).exists():
                yield f"{place(path)}: {target} does not exist"
        for name in re.findall(rf"`((?:{folders})/[\w/.]+\.\w+)`", text) if path.parent.name != "decisions" else ():
            if not (ROOT / name).exists() and not (TEMPLATE / name.replace("orders", PLACEHOLDER)).exists():
                yield f"{place(path)}: {name} does not exist"


def pages_in_messages(source: Source) -> Iterator[str]:
    """A message names a page that `onefold docs` prints, also from a wheel, and no file of the checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    packed = {Path(name).stem for name in included if name.startswith("docs/")}
    yield from (f"pyproject.toml: the wheel and docs/ differ in {name}"
                for name in packed ^ {path.stem for path in (ROOT / "docs").glob("*.md")})  # fmt: skip
    for path in source.product.values():
        for text, line in source.strings(path):
            if re.search(r"docs/[a-z-]+\.md", text):
                yield f"{place(path, line)}: name `onefold docs PAGE`, which a wheel has too"
            for page in re.findall(r"`onefold docs ([a-z-]+)`", text):
                if page not in packed:
                    yield f"{place(path, line)}: there is no page {page}"


def readme(source: Source) -> Iterator[str]:
    """As long as somebody reads who looks for a tool, with the download that the front door takes."""
    if len(source.page("README.md").splitlines()) > _README_LINES:
        yield f"README.md: has more than {_README_LINES} lines"
    door = runpy.run_path(str(ROOT / "onefold"), run_name="imported")
    every = set(door["lock_entries"]())
    for names, pages in ((every - door["left_out"](), ("README.md", "docs/install.md")), (every, ("docs/install.md",))):
        megabytes = sum(door["SIZES"].get(name, door["SMALL"]) for name in names) // 1_000_000
        for page in pages:
            if not re.search(rf"\b{len(names)} (Python )?packages(?: \(|, ){megabytes} MB", source.page(page)):
                yield f"{page}: the front door fetches {len(names)} packages, {megabytes} MB"


def public_names(source: Source) -> Iterator[str]:
    """Each is explained, and docs/api.md has the explanations."""
    if source.page("docs/api.md") != api.page():
        yield "docs/api.md: make it again with python -m tests.support.api"
    for module in map(importlib.import_module, api.MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            # A dataclass without a docstring has its own signature for one.
            if callable(found) and (inspect.isclass(found) or inspect.isfunction(found)) and (
                not found.__doc__ or found.__doc__.startswith(f"{found.__name__}(")
            ):  # fmt: skip
                yield f"{module.__name__}.{name}: has no docstring"


def command_page(source: Source) -> Iterator[str]:
    """docs/commands.md is made from the help of the commands."""
    if source.page("docs/commands.md") != commands.page():
        yield "docs/commands.md: make it again with python -m tests.support.commands"


def lists_of_images(source: Source) -> Iterator[str]:
    """The lists of packages in images/python are made from the metadata of packages, for the images' Python."""
    if sys.version_info[:2] == IMAGES_PYTHON:
        for name, text in image_packages.lists().items():
            if source.page(f"images/python/{name}") != text:
                yield f"images/python/{name}: make it again with python -m tests.support.image_packages"


def promised_tests(source: Source) -> Iterator[str]:
    """docs/promises.md is made from the marks of the tests; every test that a page names exists."""
    if source.page("docs/promises.md") != promises.page():
        yield "docs/promises.md: make it again with python -m tests.support.promises"
    tests = "\n".join(text for path, text in source.files.items() if path.is_relative_to(ROOT / "tests"))
    for path, text in source.pages.items():
        if path.parent.name != "decisions" and path.name != "CHANGELOG.md":
            yield from (f"{place(path)}: there is no test {name}" for name in re.findall(r"`(test_\w+)`", text)
                        if f"def {name}(" not in tests and f"/{name}.py" not in text)  # fmt: skip


def error_pages(source: Source) -> Iterator[str]:
    """docs/errors.md is made from the catalogue; a number is one code's, and the product has an error of each code."""
    if source.page("docs/errors.md") != error_codes.page(source):
        yield "docs/errors.md: make it again with python -m tests.support.error_codes"
    names = set(error_codes.used(source))
    yield from (
        f"{error_codes.CATALOGUE}: no error has the code {code.name}" for code in Code if code.name not in names
    )
    yield from (f"{error_codes.CATALOGUE}: {code} is not above the code before it"
                for before, code in zip(Code, list(Code)[1:], strict=False) if code.number <= before.number)  # fmt: skip


RULES = (
    verbs, options, passwords_in_arguments, settings, variables_of_compose, names_in_merges, links_and_files,
    pages_in_messages, readme, public_names, command_page, lists_of_images, promised_tests,
    error_pages,
)  # fmt: skip
