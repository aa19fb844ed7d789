"""The packages of Onefold: their folders, and the name that each module has when it is imported."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "onefold"
#: Folders at the top, to which src/onefold/ has links.
LINKED = ("processor", "spark_sink")
#: What `onefold new` writes: a project of its own, which tests/cli/test_new.py looks at.
TEMPLATE = ROOT / "src" / "onefold" / "cli" / "template"


def modules() -> dict[str, Path]:
    """Every module's file by the name that it is imported by."""
    found = {}
    folders = [
        (ROOT / "src", f"src/{PACKAGE}", ""),
        *((ROOT, name, f"{PACKAGE}.") for name in LINKED),
        (ROOT, "tests", ""),
    ]
    for base, folder, prefix in folders:
        # rglob follows no link.
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.is_relative_to(TEMPLATE):
                name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
                found[prefix + name] = path
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, read once for all rules that look at it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of its nodes, walked once."""
    return tuple(ast.walk(parsed(path)))
