"""Rules about code that neither ruff, mypy, import-linter nor deptry knows. Each yields its complaints."""

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.lint.source import Source, place
from tests.support.rooms import LINKED, PACKAGE, ROOT

# What must not be in a file, and what to do instead.
BANNED = {
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "do it, or write an issue",
    r"\bpkill\b|\bkillall\b": "end only processes that this program started, by pid",
    r"from unittest|import mock\b": "use the real part, or a simulation that passes the same tests",
}
THIS = Path(__file__)
OF_RULES = (THIS, THIS.parents[1] / "suite" / "test_lint.py")  # they name what they look for
MAY_SLEEP = ROOT / "tests" / "support" / "waiting.py"  # the helper that waits for conditions


def banned_texts(source: Source) -> Iterator[str]:
    """Neither in code nor in SQL."""
    for path, text in source.files.items():
        if path.suffix in (".py", ".sql") and path not in OF_RULES:
            yield from (f"{place(path)}: {advice}" for what, advice in BANNED.items() if re.search(what, text))


def names_that_nobody_holds(source: Source) -> Iterator[str]:
    """pip asks an index for a bare name, and on the public one this name is nobody's yet."""
    bare = re.compile(r"pip3? install\b[^\n`]*[ '\"]onefold(?=[\['\"` \n])|pip3? install onefold\b")
    for path, text in source.files.items():
        if (
            path not in OF_RULES
            and path.name != "CHANGELOG.md"
            and path.parent.name != "decisions"
            and bare.search(text)
        ):
            yield f"{place(path)}: name the file of the wheel"


def sleeping_tests(source: Source) -> Iterator[str]:
    """A sleep is too short on a busy machine or too long on an idle one."""
    for path, text in source.files.items():
        if path.is_relative_to(ROOT / "tests") and path not in (MAY_SLEEP, *OF_RULES) and re.search(r"\bsleep\(", text):
            yield f"{place(path)}: wait for a condition with a deadline: tests/support/waiting.py"


def files_that_say_nothing(source: Source) -> Iterator[str]:
    """A module opens with a docstring, a SQL file with a comment; an empty `__init__.py` has nothing to say."""
    for path in source.modules.values():
        if source.files[path] and not ast.get_docstring(source.tree(path)):
            yield f"{place(path)}: say in the first line what the module is"
    for path, text in source.files.items():
        if path.suffix == ".sql" and path.is_relative_to(ROOT / "sql") and not text.startswith("--"):
            yield f"{place(path)}: say in the first line what the statement does"


def circles(source: Source) -> Iterator[str]:
    """No module imports itself by way of others, not even for types: what two need of each other belongs into a third."""
    knows = {name: {found for found, _ in _imports(source, path)} & source.modules.keys()
             for name, path in source.modules.items()}  # fmt: skip
    try:
        TopologicalSorter(knows).prepare()
    except CycleError as error:
        yield " imports ".join(reversed(error.args[1]))


def second_names(source: Source) -> Iterator[str]:
    """Started in the checkout, Python also finds the rooms themselves: the same module twice, each with its own state."""
    for path in source.modules.values():
        for found, line in _imports(source, path):
            if found.split(".")[0] in LINKED:
                yield f"{place(path, line)}: import {PACKAGE}.{found}"


def faults_on_purpose(source: Source) -> Iterator[str]:
    """What fails on purpose is imported inside a function, by a process that is configured for it."""
    for name, path in source.product.items():
        if name.startswith("onefold.chaos"):
            continue
        for node in source.tree(path).body:
            if isinstance(node, ast.ImportFrom | ast.Import) and re.search(
                r"onefold\.chaos(\.| import )(failpoint|injection)", ast.unparse(node)
            ):
                yield f"{place(path, node.lineno)}: import it inside the function that needs it"


def readers_of_the_ledger(source: Source) -> Iterator[str]:
    """Status, dashboard and bench would otherwise each have an answer of their own to how far a sink is."""
    asks = ("onefold.spark_sink", "onefold.verify", "onefold.operate.positions")
    for name, path in source.product.items():
        if not _within(name, asks):
            yield from (f"{place(path, line)}: ask onefold.operate.positions"
                        for text, line in source.strings(path) if "onefold.ledger" in text)  # fmt: skip


def exit_codes(source: Source) -> Iterator[str]:
    """A process ends with a name of onefold.exit_codes, not with a number of its own."""
    for path in source.product.values():
        for node in source.nodes(path):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            given = (
                node.args[:1] if isinstance(node, ast.Call) and called in ("typer.Exit", "sys.exit", "os._exit") else []
            )
            if isinstance(node, ast.keyword) and node.arg == "exit_code":
                given = [node.value]
            for part in given:
                for value in (part.body, part.orelse) if isinstance(part, ast.IfExp) else (part,):
                    if isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value:
                        yield f"{place(path, value.lineno)}: take a name of onefold.exit_codes"


def coded_rejections(source: Source) -> Iterator[str]:
    """`Rejected` has a code of its own only for handlers; the type asks every other error for one."""
    for name, path in source.product.items():
        if not name.startswith("onefold.processor.apps."):
            for node in source.nodes(path):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if isinstance(node, ast.Call) and called == "Rejected" and len(node.args) + len(node.keywords) < 2:
                    yield f"{place(path, node.lineno)}: take a code of onefold.error_codes"


def named_pipelines(source: Source) -> Iterator[str]:
    """The engine names no pipeline, except the default of `bench`, that of `bench peers`, and names of earlier releases."""
    names = _brought_along()
    shows = ("onefold.processor.apps", "onefold.trades", "onefold.workloads", "onefold.cli.names",
             "onefold.cli.commands.bench.common", "onefold.bench.peers")  # fmt: skip
    for name, path in source.product.items():
        if not _within(name, shows):
            yield from (f"{place(path, line)}: names the pipeline {text}"
                        for text, line in source.strings(path) if text in names)  # fmt: skip


def pipelines_on_the_page(source: Source) -> Iterator[str]:
    """The dashboard shows what a pipeline declares, and names none: neither in code and comments nor in a template."""
    words = re.compile(rf"\b({'|'.join(_brought_along())})\b", re.IGNORECASE)
    for path, text in source.files.items():
        if path.is_relative_to(ROOT / "src" / "onefold" / "dashboard"):
            yield from (f"{place(path, number)}: names the pipeline {named[1]}"
                        for number, line in enumerate(text.splitlines(), 1) if (named := words.search(line)))  # fmt: skip


def _brought_along() -> list[str]:
    return list(tomllib.loads((ROOT / "src" / PACKAGE / "onefold.toml").read_text(encoding="utf-8"))["pipelines"])


_KAFKA_CLIENTS = {"AdminClient", "Consumer", "Producer", "DeserializingConsumer", "SerializingProducer", "AIOConsumer",
                  "AIOProducer"}  # fmt: skip


def makers_of_kafka_clients(source: Source) -> Iterator[str]:
    """One module makes them, and keeps the reason that librdkafka gives when Kafka does not let a client in."""
    for name, path in source.product.items():
        known = {here for here, there in _named(source, path, "confluent_kafka") if there in _KAFKA_CLIENTS}
        for node in source.nodes(path):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name != "onefold.kafka_client" and (
                called in known or ("." in called and called.rpartition(".")[2] in _KAFKA_CLIENTS)
            ):
                yield f"{place(path, node.lineno)}: make it with onefold.kafka_client"  # type: ignore[attr-defined]  # a Call


# What librdkafka sends to the broker that its metadata name as the controller.
_TO_THE_CONTROLLER = {"describe_topics", "create_topics", "delete_topics"}


def askers_of_the_controller(source: Source) -> Iterator[str]:
    """One module asks what any broker can answer, so that a dead controller is not waited for."""
    for name, path in source.product.items():
        ours = {here for here, _ in _named(source, path, "onefold")}
        for node in source.nodes(path) if name != "onefold.kafka_ask" and not name.startswith("onefold.bench") else ():
            called = node.func if isinstance(node, ast.Call) else None
            if (
                isinstance(called, ast.Attribute)
                and called.attr in _TO_THE_CONTROLLER
                and ast.unparse(called.value) not in ours
            ):
                yield f"{place(path, called.lineno)}: ask through onefold.kafka_ask"


def openers_of_sessions(source: Source) -> Iterator[str]:
    """One module opens sessions of PostgreSQL, with all settings that reading and writing rest on."""
    for name, path in source.product.items():
        for node in source.nodes(path) if name != "onefold.postgres" else ():
            called = isinstance(node, ast.Attribute) and re.fullmatch(
                r"(psycopg\.)?((Async)?Connection\.)?connect", ast.unparse(node)
            ) and ast.unparse(node).split(".")[0] in ("psycopg", "AsyncConnection", "Connection")  # fmt: skip
            hidden = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("psycopg", "psycopg_pool") and {
                alias.name for alias in node.names
            } & {"connect", "ConnectionPool", "AsyncConnectionPool"}  # fmt: skip
            if called or hidden:
                yield f"{place(path, node.lineno)}: open it with onefold.postgres.connect"  # type: ignore[attr-defined]  # has a line


_TEMPORARY = {"NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"}
_RUNS = {"run", "Popen", "check_output", "getoutput", "getstatusoutput"}
_BEFORE_ENCODING = {"read_text": 0, "write_text": 1, "TextIOWrapper": 1, "FileHandler": 2}  # positional arguments
_MODE = re.compile(r"[rwxa]\+?t?\+?")


def encodings_of_the_locale(source: Source) -> Iterator[str]:
    """Each text file and pipe has its encoding named. Ruff's PLW1514 finds a path only by its type, and no pipe."""
    for path in source.files:
        if path.suffix == ".py" or path == ROOT / "onefold":
            yield from (f"{place(path, line)}: name the encoding" for line in _without_encoding(source.nodes(path)))


def _without_encoding(nodes: tuple[ast.AST, ...]) -> Iterator[int]:
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        named = {keyword.arg for keyword in call.keywords}
        if {"encoding", None} & named:  # None: `**options`
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        modes = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        opens_text = any(_MODE.fullmatch(mode) for mode in modes)
        if (
            (name in _BEFORE_ENCODING and len(call.args) <= _BEFORE_ENCODING[name])
            or (name in _TEMPORARY and opens_text)
            or (name in {"open", "fdopen"} and opens_text)
            or (name == "open" and isinstance(call.func, ast.Name) and len(values) < 2)
            or (name in _RUNS and {"text", "universal_newlines"} & named)
        ):
            yield call.lineno


def types_that_are_not_checked(source: Source) -> Iterator[str]:
    """An ignored line names one kind and its reason; no file is switched off."""
    for path in source.modules.values():
        if path in OF_RULES:
            continue
        for number, line in enumerate(source.files[path].splitlines(), 1):
            if "type: ignore" in line and not re.search(r"# type: ignore\[[a-z-]+\]  # \w", line):
                yield f"{place(path, number)}: name the kind and the reason"
            if re.search(r"^# mypy:|no_type_check", line):
                yield f"{place(path, number)}: mypy checks every file"


def folders_of_the_package(source: Source) -> Iterator[str]:
    """The package has two links and no other; an `__init__.py` in avro/ would shadow the package avro."""
    links = {path.name for path in (ROOT / "src" / PACKAGE).iterdir() if path.is_symlink()}
    yield from (f"src/{PACKAGE}/{name}: link to the folder, and to no other" for name in links ^ {*LINKED})
    yield from (f"{place(path)}: contracts and SQL are data"
                for folder in ("avro", "sql") for path in (ROOT / folder).rglob("*.py"))  # fmt: skip


def pins(source: Source) -> Iterator[str]:
    """The lock has a hash for each package, and no place that it comes from."""
    lock = source.page("requirements.lock")
    if re.search(r"https?://|--index|--find-links|file:", lock):
        yield "requirements.lock: names a place"
    for block in re.split(r"^(?=[a-z])", lock, flags=re.MULTILINE)[1:]:
        if not re.match(r"[a-z0-9-]+==", block) or "--hash=sha256:" not in block:
            yield f"requirements.lock: {block.split()[0]} has no version or no hash"


def vendored_files(source: Source) -> Iterator[str]:
    """Files of others are as their makers published them, each with its licence."""
    for checksums in (*ROOT.glob("src/onefold/dashboard/**/SHA256SUMS"), *ROOT.glob("tests/**/SHA256SUMS")):
        lines = [
            line.split() for line in checksums.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
        ]
        listed = {name: digest for digest, name in lines}
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                 for path in checksums.parent.iterdir() if path != checksums}  # fmt: skip
        yield from (
            f"{place(checksums.parent / name)}: not as it is listed" for name in dict(listed.items() ^ found.items())
        )
        if not any(name.endswith(".LICENSE") for name in listed):
            yield f"{place(checksums)}: lists no licence"


def _within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def _named(source: Source, path: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """What a module imports from modules whose names begin so: the name here, and the name there."""
    for node in source.nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def _imports(source: Source, path: Path) -> Iterator[tuple[str, int]]:
    """Names of imported modules with their lines; `from a import b` gives a.b where that is a module."""
    for node in source.nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in source.modules else node.module or ""), node.lineno


RULES = (
    banned_texts, names_that_nobody_holds, sleeping_tests, files_that_say_nothing, circles, second_names, faults_on_purpose,
    readers_of_the_ledger, exit_codes, coded_rejections, named_pipelines, pipelines_on_the_page, makers_of_kafka_clients,
    askers_of_the_controller, openers_of_sessions, encodings_of_the_locale, types_that_are_not_checked,
    folders_of_the_package, pins, vendored_files,
)  # fmt: skip
