"""Packages of Onefold: folders, and import names of modules."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "onefold"
#: Top-level folders with links in src/onefold/.
LINKED = ("processor", "spark_sink")
#: Template of `onefold new`: a separate project, which tests/cli/test_new.py checks.
TEMPLATE = ROOT / "src" / "onefold" / "cli" / "template"


def modules() -> dict[str, Path]:
    """File of every module by import name."""
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
    """Syntax tree of a file, parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree, walked once."""
    return tuple(ast.walk(parsed(path)))
