"""The lists in images/python: which packages of the lock each image needs. `python -m tests.support.image_packages` writes them.

The lists follow from the extras in pyproject.toml and from the requirements of the installed packages.
"""

import re
from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.rooms import ROOT

FOLDER = ROOT / "images" / "python"
#: Packages that no requirement names: pip makes environments, and pyspark's source needs setuptools.
_BUILDER, _OWN = {"setuptools"}, {"onefold"}


def lists() -> dict[str, str]:
    """The content of each file, by name."""
    service = _closure("onefold", {"processor"})
    optional = _closure("onefold", {"registry", "s3"}) - service
    sink = _closure("onefold", {"sink"}) - service
    spark, optional = sink - optional, optional - sink
    embedded = _closure("onefold", {"stack"}) - service - sink - optional
    wheel = {name for tool in ("hatchling", "editables") for name in _closure(tool, set())}
    tests = _locked() - service - sink - optional - embedded
    return {
        "builder.txt": _text("The build tool of pyspark.", _BUILDER),
        "embedded.txt": _text(
            "Packages for the embedded stack only: containers have Debian's Java and PostgreSQL.", embedded
        ),
        "optional.txt": _text("Optional packages: the schema registry's client, and objects in S3.", optional),
        "spark.txt": _text("Packages for the sink only.", spark - _BUILDER),
        "tests.txt": _text("Packages for tests and builds only.", tests | _BUILDER),
        "wheel.txt": _text("Build tools of the wheel and of an editable install.", wheel),
    }


def _text(title: str, names: Iterable[str]) -> str:
    made = "# Made by python -m tests.support.image_packages.\n"
    return f"# {title}\n{made}" + "".join(f"{name}\n" for name in sorted(names))


def _closure(name: str, extras: set[str]) -> set[str]:
    """The package and its requirements, with those of the requirements. Onefold itself is not part of the lock."""
    found: set[str] = set()
    _follow(name, extras, found, set())
    return found - _OWN


def _follow(name: str, extras: set[str], found: set[str], seen: set[tuple[str, str]]) -> None:
    found.add(name)
    for extra in ("", *extras):
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in _requirements(name):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                _follow(canonicalize_name(requirement.name), requirement.extras, found, seen)


def _requirements(name: str) -> Iterator[Requirement]:
    yield from map(Requirement, metadata.requires(name) or ())


def _locked() -> set[str]:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    found = re.findall(r"^([a-z0-9][a-z0-9.-]*)==(.*)$", lock, re.MULTILINE)
    return {name for name, pin in found if not re.search("sys_platform == '(win32|emscripten)'", pin)}


if __name__ == "__main__":
    for file, text in lists().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
