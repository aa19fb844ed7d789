"""The checkout as the rules see it. A test of a rule puts a file with a fault over it."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.support.rooms import PACKAGE, ROOT, modules


class Source:
    """Modules by the name that they are imported by, and all pages, SQL files and other texts that the rules read."""

    def __init__(self) -> None:
        self.files = {
            path: path.read_text(encoding="utf-8")
            for path in (
                *modules().values(),
                ROOT / "onefold",
                *ROOT.glob("*.md"),
                *(ROOT / "docs").rglob("*.md"),
                *(ROOT / "sql").rglob("*.sql"),
                *(ROOT / "src" / "onefold" / "cli" / "template").rglob("*.py"),
                *(ROOT / "src" / "onefold" / "cli" / "template").rglob("*.sql"),
                *(ROOT / "examples").rglob("*.py"),
                *(ROOT / "images").rglob("*.py"),
                *(ROOT / "images" / "python").glob("*.txt"),
                *(ROOT / "src" / "onefold" / "dashboard" / "templates").glob("*.html"),
                *(ROOT / "src" / "onefold" / "dashboard" / "static").glob("*.*"),
                ROOT / "docker-compose.yml",
                ROOT / "requirements.lock",
            )
        }
        self.modules = modules()

    def over(self, name: str, text: str) -> "Source":
        """The same with one file changed or added, by its path in the checkout."""
        changed = object.__new__(Source)
        path = ROOT / name
        changed.files = {**self.files, path: text}
        changed.modules = dict(self.modules)
        if path.suffix == ".py" and path not in self.modules.values():
            changed.modules[f"{PACKAGE}.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}"] = path
        return changed

    @property
    def product(self) -> dict[str, Path]:
        """The modules of the package, without tests."""
        return {name: path for name, path in self.modules.items() if not name.startswith("tests")}

    @property
    def pages(self) -> dict[Path, str]:
        """Every Markdown page."""
        return {path: text for path, text in self.files.items() if path.suffix == ".md"}

    def page(self, name: str) -> str:
        """The text of a page, by its path in the checkout."""
        return self.files[ROOT / name]

    def tree(self, path: Path) -> ast.Module:
        """The syntax tree of a module, parsed once."""
        return _tree(self.files[path])

    def nodes(self, path: Path) -> tuple[ast.AST, ...]:
        """All nodes of the tree, walked once."""
        return _nodes(self.files[path])

    def strings(self, path: Path) -> Iterator[tuple[str, int]]:
        """The string constants of a module with their lines, without docstrings."""
        docstrings = {id(node.value) for node in self.nodes(path) if isinstance(node, ast.Expr)}
        for node in self.nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield node.value, node.lineno


@functools.cache
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(text)))


def place(path: Path, line: int = 0) -> str:
    """As a complaint names it."""
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))
