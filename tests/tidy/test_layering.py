"""Who may import whom. Think hard before you edit this table: it is the architecture."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("console", "processor", "proof", "spark_sink", "tests")

# A module is in the first room that its name starts with. It may import its own room, and these.
MAY_IMPORT = {
    "processor.core": (),
    "processor.apps": ("processor.core",),
    "processor.runtime": ("processor.core",),
    "processor.io": ("processor.core",),
    # The driver runs the real loop and the real codec, or it would prove nothing about them.
    "processor.testing": ("processor.core", "processor.runtime", "processor.io.serde", "processor.io.contracts"),
    # Where the parts are put together.
    "processor.service": ("processor",),
    "processor": (),
    "spark_sink": (),
    # The judge shares no code with the judged.
    "proof": ("console.embedded",),
    "console": ("processor", "spark_sink", "proof"),
    "tests": ("console", "processor", "proof", "spark_sink"),
}
# Except for the benches, which run the product from outside, the judge imports nothing of the product at all.
BENCHES = "proof.bench"
# One door for each library of the outside world.
DOORS = {
    "confluent_kafka": ("processor.io", "proof", "spark_sink", "console", "tests"),
    "pyspark": ("spark_sink", "console.embedded", "proof.bench", "tests"),
    "psycopg": ("spark_sink", "proof", "console", "tests"),
    "fastavro": ("processor.io", "processor.testing", "proof", "spark_sink", "tests"),
    # Also the states of apps that fold many events: a Struct is made in half of the time of a slotted dataclass.
    "msgspec": ("processor.io", "processor.apps", "tests"),
    "typer": ("console",),
}
# In the core nothing may depend on when, where or by chance.
IMPURE = {
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


def modules() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


MODULES = dict(modules())


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Names of imported modules, with their lines; `from a import b` gives a.b where that is a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield (full if full in MODULES else base), node.lineno


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def room_of(name: str) -> str:
    return next(room for room in MAY_IMPORT if within(name, (room,)))


@pytest.mark.parametrize("name", MODULES)
def test_a_room_imports_only_what_it_may(name: str) -> None:
    """As the table says."""
    room = room_of(name)
    allowed = (room, *MAY_IMPORT[room])
    if room == "proof" and not within(name, (BENCHES,)):
        allowed = ("proof",)
    if within(name, (BENCHES,)):
        allowed = ("proof", "console", "processor", "spark_sink")
    wrong = [f"{MODULES[name].relative_to(ROOT)}:{line} imports {found}" for found, line in imports(MODULES[name])
             if within(found, ROOMS) and not within(found, allowed)]  # fmt: skip

    assert wrong == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Neither while it runs nor for its types alone: what two modules need of each other belongs into a third one."""
    knows = {name: {found for found, _ in imports(path)} & MODULES.keys() for name, path in MODULES.items()}
    circles = []
    try:
        TopologicalSorter(knows).prepare()
    except CycleError as error:
        circles = error.args[1]

    assert circles == []


@pytest.mark.parametrize("name", MODULES)
def test_outside_libraries_have_one_door(name: str) -> None:
    """So that a library can be replaced by rewriting one room."""
    wrong = [f"{MODULES[name].relative_to(ROOT)}:{line} imports {found}" for found, line in imports(MODULES[name])
             if (doors := DOORS.get(found.split(".")[0])) and not within(name, doors)]  # fmt: skip

    assert wrong == []


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, ("processor.core", "processor.apps"))])
def test_the_core_is_pure(name: str) -> None:
    """The standard library only, and of that nothing with a clock, dice or I/O. A state may be a Struct, a mere value."""
    found = {imported.split(".")[0] for imported, _ in imports(MODULES[name])} - {"processor"}
    values = {"msgspec"} if within(name, ("processor.apps",)) else set()

    assert set() == found - set(sys.stdlib_module_names) - values
    assert set() == found & IMPURE


def test_contracts_and_sql_are_data() -> None:
    """An __init__.py in avro/ would shadow the package avro, silently."""
    assert [*(ROOT / "avro").rglob("*.py"), *(ROOT / "sql").rglob("*.py")] == []


def test_the_engine_knows_no_domain() -> None:
    """No domain's name in the engine, the sink, the judge's engine or the console, except where a demo or a bench shows one."""
    domains = [path.stem for path in (ROOT / "processor" / "apps").glob("*.py") if path.stem != "__init__"]
    shows = ("console.commands.demo", "console.commands.bench", "proof.bench", "proof.workloads")
    engine = [(name, path) for name, path in MODULES.items() if not within(name, ("processor.apps", "tests", *shows))]
    wrong = []
    for name, path in engine:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in domains:
                wrong.append(f"{name}:{node.lineno} names {node.value}")

    assert wrong == []
