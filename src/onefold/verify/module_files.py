"""Find the files of a module and of all its direct and indirect imports, and the distributions of libraries.

The imports come from the source code, so further modules loaded in the process have no influence. A module that a loaded module
refers to, directly or through an object, also counts as imported, because its name may be missing in the source.
"""

import ast
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

_STANDARD = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
# Imports of Onefold's modules are not followed: they import one another, and a fingerprint includes the verifier anyway.
_ONEFOLD = "onefold"


class MadeOf(NamedTuple):
    """The files of modules outside of distributions, by module name, and the distributions of the remaining modules."""

    files: dict[str, Path]
    distributions: set[str]


def made_of(module: ModuleType) -> MadeOf:
    """Find the files and distributions of a loaded module. Modules of the same top-level package count as files, even if
    installed.
    """
    files, libraries = dict[str, Path](), set[str]()
    seen, waiting = set[str](), [module.__name__]
    own = {module.__name__.partition(".")[0], _ONEFOLD}
    while waiting:
        name = waiting.pop()
        spec = None if name in seen else _spec(name)
        seen.add(name)
        if spec is None:
            continue
        (top, *inner), path = name.split("."), Path(spec.origin or "")
        is_installed = not _INSTALLED.isdisjoint(path.parts)
        if inner and top != _ONEFOLD:
            waiting.append(name.rpartition(".")[0])
        if not spec.has_location or (path.is_relative_to(_STANDARD) and not is_installed):
            continue
        if is_installed and top not in own:
            libraries.add(top)
            continue
        files[name] = path
        if top != _ONEFOLD:
            waiting += _imported(name, spec, path)
    return MadeOf(files, _with_needs(_distributions(libraries)) if libraries else set())


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the names imported by a module of a package. A name may be an object in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _spec(name: str) -> ModuleSpec | None:
    """Find a module without loading a package."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    package, _, _ = name.rpartition(".")
    folders = None
    if package:
        found = _spec(package)
        folders = found.submodule_search_locations if found else None
        if folders is None:
            return None
    specs = (finder.find_spec(name, folders) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _imported(name: str, spec: ModuleSpec, path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        yield from imports(ast.parse(path.read_bytes()), spec.parent or "")
    for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
        if not isinstance(value, ModuleType):
            of = value if isinstance(value, FunctionType | type) else type(value)
            yield str(of.__module__)
        elif value.__name__.rpartition(".")[0] != name:  # a package refers to its submodules loaded by any module
            yield value.__name__


def _distributions(libraries: Iterable[str]) -> set[str]:
    known = metadata.packages_distributions()
    return {distribution for library in libraries for distribution in known.get(library, ())}


def _with_needs(distributions: Iterable[str]) -> set[str]:
    """Add the distributions required by these distributions."""
    found, waiting = set[str](), [*distributions]
    while waiting:
        name = waiting.pop()
        try:
            needs = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue  # not for this system
        if name not in found:
            found.add(name)
            waiting += [re.split(r"[^\w.-]", need)[0] for need in needs if "extra ==" not in need]
    return found
