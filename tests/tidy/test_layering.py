"""Who may import whom. Think hard before you edit this table: it is the architecture."""

import ast
import functools
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.rooms import PACKAGE, ROOMS, ROOT, modules, nodes, parsed

MODULES = modules()

_DATA = "contract_files kafka_client kafka_probe names pipelines processor"
# A module is in the first room that its name starts with. It may import its own room, and these. A room may import what is
# below it here, never what is above.
MAY_IMPORT = {
    "onefold.cli": ("onefold",),
    "onefold.bench": (
        "onefold.chaos",
        "onefold.jobs",
        "onefold.operate",
        "onefold.processor",
        "onefold.proof",
        "onefold.spark_sink",
        "onefold.stack",
    ),
    "onefold.chaos": (
        "onefold.jobs",
        "onefold.operate",
        "onefold.processor",
        "onefold.proof",
        "onefold.spark_sink",
        "onefold.stack",
    ),
    "onefold.dashboard": (
        "onefold.jobs",
        "onefold.operate",
        "onefold.processor",
        "onefold.proof",
        "onefold.spark_sink",
        "onefold.stack",
    ),
    "onefold.stack": ("onefold.operate",),
    "onefold.operate": ("onefold.lineage", "onefold.processor", "onefold.proof", "onefold.spark_sink"),
    # What effects and workers promise each other: no library, no room.
    "onefold.jobs.protocols": (),
    "onefold.jobs": ("onefold.operate", "onefold.processor", "onefold.spark_sink.postgres"),
    "onefold.processor.core": (),
    # A pipeline needs what everybody's pipeline needs, and nothing else: the public names.
    "onefold.processor.apps": ("=onefold", "onefold.windows"),
    "onefold.processor.runtime": ("onefold.processor.core",),
    "onefold.processor.io": ("onefold.processor.core", "onefold.lineage", "onefold.contract_files"),
    # The driver runs the real loop and the real codec, or it would prove nothing about them.
    "onefold.processor.testing": (
        "onefold.jobs.protocols",
        "onefold.processor.core",
        "onefold.processor.runtime",
        "onefold.processor.io.serde",
        "onefold.processor.io.contracts",
        "onefold.processor.io.logical",
        "onefold.processor.io.proposals",
    ),
    "onefold.processor.kept": ("onefold.processor.core", "onefold.processor.io.disk", "onefold.processor.runtime"),
    "onefold.processor.service": ("onefold.processor",),  # where the parts are put together
    # Without a Kafka client: a pipeline is checked where none is installed.
    "onefold.processor.loading": (
        "onefold.processor.core",
        "onefold.processor.io.contracts",
        "onefold.processor.io.registry",
        "onefold.processor.io.serde",
    ),
    **dict.fromkeys(("onefold.spark_sink.postgres", "onefold.spark_sink.supervisor"), ("onefold.spark_sink.errors",)),
    # One rule of what came true, and one reading of a proposal, for every reader alike; the judge has its own.
    "onefold.spark_sink.decisions": (
        "onefold.processor.core.decision",
        "onefold.processor.core.decision_log",
        "onefold.processor.core.errors",
        "onefold.processor.io.proposals",
        "onefold.spark_sink.errors",
    ),
    # A landing needs neither Spark nor Kafka: whoever hands in rows and topics can run one.
    "onefold.spark_sink.landing": (
        "onefold.spark_sink.contracts",
        "onefold.spark_sink.decisions",
        "onefold.spark_sink.errors",
        "onefold.spark_sink.plan",
        "onefold.spark_sink.postgres",
    ),
    "onefold.spark_sink.kafka": ("onefold.processor.io.ask", "onefold.spark_sink.errors", "onefold.spark_sink.landing"),
    "onefold.spark_sink.spark": ("onefold.spark_sink",),
    "onefold.spark_sink": ("onefold.lineage", "onefold.contract_files"),
    # The judge shares no code with the judged.
    "onefold.proof": (),
    "onefold.lineage": ("onefold.contract_files",),
    **dict.fromkeys(map("onefold.{}".format, _DATA.split()), ()),
    # The public names, for pipelines, for their tests and for their models.
    "onefold.testing": ("onefold.processor.core.steps", "onefold.processor.testing"),
    "onefold.model": ("onefold.proof",),
    "onefold.effects": ("onefold.jobs.context", "onefold.jobs.protocols"),
    "onefold": ("onefold.exit_codes", "onefold.processor.core"),
    "tests": ("onefold",),
}
# What every room may know that may know anything: pipelines, how a process says how it is, how it opens a session.
_KNOWN = "class_archive exit_codes jvm kafka_client kafka_probe names packages pipelines postgres status_file telemetry"
SHARED = tuple(f"onefold.{name}" for name in _KNOWN.split())
PURE = ("onefold.processor.core", "onefold.processor.apps")
DOORS = {  # one for each library of the outside world
    "confluent_kafka": (
        "onefold.kafka_client",
        "onefold.processor.io",
        "onefold.proof",
        "onefold.spark_sink.kafka",
        "onefold.jobs",
        "onefold.operate",
        "onefold.chaos",
        "onefold.bench",
        "onefold.dashboard",
        "onefold.stack",
        "tests",
    ),
    "pyspark": ("onefold.spark_sink.spark", "onefold.stack", "onefold.bench", "tests"),
    "psycopg": (
        "onefold.jobs",
        "onefold.postgres",
        "onefold.spark_sink",
        "onefold.proof",
        "onefold.operate",
        "onefold.chaos",
        "onefold.cli",
        "onefold.bench",
        "onefold.dashboard",
        "onefold.stack",
        "tests",
    ),
    "fastavro": (
        "onefold.lineage",
        "onefold.processor.io",
        "onefold.processor.testing",
        "onefold.proof",
        "onefold.spark_sink",
        "tests",
    ),
    # Also the states of apps that fold many events: a Struct is made in half of the time of a slotted dataclass.
    "msgspec": ("onefold.processor.io", "onefold.processor.apps", "tests"),
    "rocksdict": ("onefold.processor.io.disk",),
    "boto3": ("onefold.jobs.objects", "onefold.proof.objects", "tests"),
    "lark": ("onefold.jobs.apps.sheets.formula_language",),
    "botocore": ("onefold.jobs.objects", "tests"),
    "typer": ("onefold.cli",),
    "prometheus_client": ("onefold.operate.exposed", "tests"),
}
# What is handed its clock, its threads and its choices, so that a test can drive it.
DRIVEN = ("onefold.processor.runtime", "onefold.spark_sink.landing", "onefold.spark_sink.supervisor")
THREADS = ("onefold.processor.runtime.thread",)  # what hands them in
NOT_HANDED_IN = {"time", "datetime", "random", "threading", "queue", "concurrent", "asyncio"}
IMPURE = {  # in the core nothing may depend on when, where or by chance
    "time",
    "random",
    "os",
    "socket",
    "threading",
    "subprocess",
    "pathlib",
    "secrets",
    "uuid",
    "asyncio",
    "logging",
}


@functools.cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Names of imported modules, with their lines; `from a import b` gives a.b where that is a module."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield (full if full in MODULES else base), node.lineno


def within(name: str, rooms: tuple[str, ...]) -> bool:
    """A room is a module and what is below it; with a = before it, it is the module alone."""
    return any(name == room.removeprefix("=") or name.startswith(f"{room}.") for room in rooms)


def room_of(name: str) -> str:
    return next(room for room in MAY_IMPORT if within(name, (room,)))


def wrong(forbidden: Callable[[str, str], bool]) -> list[str]:
    """Every import, with file and line, of which `forbidden(module, what it imports)` says so."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {found}"
        for name, path in MODULES.items()
        for found, line in imports(path)
        if forbidden(name, found)
    ]


def test_every_module_is_looked_at() -> None:
    """Each in one room, and what it imports is seen: an empty list of what is wrong could also mean that nobody looked."""
    assert len(MODULES) > 200
    assert {room_of(name) for name in MODULES} == MAY_IMPORT.keys()
    assert wrong(lambda name, found: (name, found) == (__name__, "pytest"))


def test_a_room_imports_only_what_it_may() -> None:
    """As the table says."""

    def forbidden(name: str, found: str) -> bool:
        room = room_of(name)
        everybody = SHARED if room not in ("onefold", *PURE) else ()
        allowed = (*((room,) if room != "onefold" else ()), *everybody, *MAY_IMPORT[room])
        return within(found, (PACKAGE, "tests")) and not within(found, allowed)

    assert wrong(forbidden) == []


def test_the_public_names_are_cheap_to_import() -> None:
    """Whatever imports anything of Onefold loads them first: no client, no codec, no third party at all."""
    program = "import sys, onefold; print(*sys.modules)"
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    printed = subprocess.check_output([sys.executable, "-P", "-c", program], env=here).decode()
    loaded = {name for name in printed.split() if within(name, (PACKAGE,))}

    assert loaded <= {PACKAGE, "onefold.processor"} | {
        name for name in MODULES if within(name, ("onefold.processor.core",))
    }
    assert not {name.split(".")[0] for name in printed.split()} & DOORS.keys()


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Neither while it runs nor for its types alone: what two modules need of each other belongs into a third one."""
    knows = {name: {found for found, _ in imports(path)} & MODULES.keys() for name, path in MODULES.items()}
    circles = []
    try:
        TopologicalSorter(knows).prepare()
    except CycleError as error:
        circles = error.args[1]

    assert circles == []


def test_outside_libraries_have_one_door() -> None:
    """So that a library can be replaced by rewriting one room."""

    def forbidden(name: str, found: str) -> bool:
        doors = DOORS.get(found.split(".")[0])
        return doors is not None and not within(name, doors)

    assert wrong(forbidden) == []


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, PURE)])
def test_the_core_is_pure(name: str) -> None:
    """The standard library only, and of that nothing with a clock, dice or I/O. A state may be a Struct, a mere value."""
    found = {imported.split(".")[0] for imported, _ in imports(MODULES[name])} - {PACKAGE}
    values = {"msgspec"} if within(name, ("onefold.processor.apps",)) else set()

    assert set() == found - set(sys.stdlib_module_names) - values
    assert set() == found & IMPURE


def test_time_is_handed_in() -> None:
    """A test that drives it by a schedule of its own would otherwise drive only a part of it."""
    driven = [name for name in MODULES if within(name, DRIVEN) and not within(name, THREADS)]
    assert len(driven) >= len(DRIVEN)
    assert [
        (name, found) for name in driven for found, _ in imports(MODULES[name]) if found.split(".")[0] in NOT_HANDED_IN
    ] == []


def test_everything_is_imported_by_its_one_name() -> None:
    """Started in the checkout, Python would also find the rooms themselves: the same module twice, with states of its own."""
    assert wrong(lambda name, found: found.split(".")[0] in ROOMS) == []


def test_nothing_breaks_itself_unless_it_is_asked_to() -> None:
    """What fails on purpose is loaded inside a function, by a process that is configured for it."""
    on_purpose = ("onefold.chaos.failpoint", "onefold.chaos.injection")
    sound = [path for name, path in MODULES.items() if not within(name, ("onefold.chaos", "tests"))]
    loaded = {
        (path, found)
        for path in sound
        for node in parsed(path).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for found, line in imports(path)
        if line == node.lineno
    }

    assert len(loaded) > len(sound)
    assert [(path, found) for path, found in loaded if within(found, on_purpose)] == []


# Who may ask the ledger: the sink, which writes it, the judge, which shares no code, and one module for everybody else.
ASKS_THE_LEDGER = ("onefold.spark_sink", "onefold.proof", "onefold.operate.positions")
WRITES_STATUS_FILES = ("onefold.status_file",)
EXIT_CODES = ("onefold.exit_codes",)


def texts(path: Path) -> Iterator[tuple[str, int]]:
    """The strings of a module with their lines, docstrings too."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def others_than(names: tuple[str, ...]) -> list[Path]:
    """The modules of all rooms but these, and but tests."""
    return [path for name, path in MODULES.items() if not within(name, ("tests", *names))]


def test_one_module_asks_the_ledger() -> None:
    """Status, dashboard, chaos and bench would otherwise each have an answer of their own to how far a sink is."""
    asking = [
        (path, line) for path in others_than(ASKS_THE_LEDGER) for text, line in texts(path) if "onefold.ledger" in text
    ]
    assert asking == []


def test_those_that_may_ask_the_ledger_do() -> None:
    asks = {
        room for room in ASKS_THE_LEDGER for name, path in MODULES.items() if within(name, (room,))
        for text, _ in texts(path) if "onefold.ledger" in text
    }  # fmt: skip
    assert asks == set(ASKS_THE_LEDGER)


def test_one_module_writes_status_files() -> None:
    """`updated_at` with `state` is the file's own form; others read it through `status_file.read`."""
    writing = [
        (path, node.lineno)
        for path in others_than(WRITES_STATUS_FILES)
        for node in nodes(path)
        if isinstance(node, ast.Dict)
        and {key.value for key in node.keys if isinstance(key, ast.Constant)} >= {"version", "state", "updated_at"}
    ]
    assert writing == []


def test_one_table_has_the_exit_codes() -> None:
    """A process ends with a name of that table, not with a number of its own."""
    wrong = []
    for path, node in ((of, node) for of in others_than(EXIT_CODES) for node in nodes(of)):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        given = node.args[:1] if isinstance(node, ast.Call) and called in ("typer.Exit", "sys.exit", "os._exit") else []
        if isinstance(node, ast.keyword) and node.arg == "exit_code":
            given = [node.value]
        parts = [part for arg in given for part in ([arg.body, arg.orelse] if isinstance(arg, ast.IfExp) else [arg])]
        numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
        wrong += [(path, number) for number in numbers if isinstance(number, int) and number]
    assert wrong == []


def test_the_package_has_every_room() -> None:
    """What `ls` shows is what an installed Onefold has."""
    links = {path.name for path in (ROOT / "src" / PACKAGE).iterdir() if path.is_symlink()}

    assert links == {*ROOMS, "avro", "sql"}


def test_contracts_and_sql_are_data() -> None:
    """An __init__.py in avro/ would shadow the package avro, silently."""
    assert [*(ROOT / "avro").rglob("*.py"), *(ROOT / "sql").rglob("*.py")] == []


def test_the_engine_knows_no_domain() -> None:
    """No domain's name in the engine, the sink, the judge's engine or the console, except where a demo or a bench shows one."""
    domains = tomllib.loads((ROOT / "src" / PACKAGE / "onefold.toml").read_text(encoding="utf-8"))["pipelines"]
    shows = (
        "onefold.cli.commands.demo",
        "onefold.cli.commands.bench",
        "onefold.bench",
        "onefold.proof.workloads",
    )
    engine = [
        (name, path) for name, path in MODULES.items() if not within(name, ("onefold.processor.apps", "tests", *shows))
    ]
    named = []
    for name, path in engine:
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in domains:
                named.append(f"{name}:{node.lineno} names {node.value}")

    assert named == []
