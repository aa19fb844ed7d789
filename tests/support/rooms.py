"""The rooms of the house: the folders at the top that hold Python, and the name that each has when it is imported."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What an installed Onefold has; src/onefold/ links to them, and has the public names itself.
ROOMS = ("bench", "chaos", "cli", "dashboard", "jobs", "operate", "processor", "proof", "spark_sink", "stack")
PACKAGE = "onefold"
#: What `onefold new` writes: a project of its own, which tests/cli/test_new.py looks at.
TEMPLATE = ROOT / "cli" / "template"


def modules() -> dict[str, Path]:
    """Every module's file by the name that it is imported by."""
    found = {}
    own = ROOT / "src" / PACKAGE
    # The other folders are links to the rooms.
    for path in (*own.glob("*.py"), *own.glob("config/*.py"), *own.glob("trades/*.py")):
        name = ".".join((PACKAGE, *path.relative_to(own).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
    for room in (*ROOMS, "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.is_relative_to(TEMPLATE):
                continue
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name if room == "tests" else f"{PACKAGE}.{name}"] = path
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, read once for all rules that look at it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of its nodes, walked once."""
    return tuple(ast.walk(parsed(path)))
