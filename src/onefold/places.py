"""Where the package has its data folders (avro, sql, docs), and whether it runs from a checkout. The standard library only."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
#: The folder above `src` in a checkout; means nothing where a wheel is installed.
TOP = PACKAGE.parents[1]
CHECKOUT = PACKAGE.parent.name == "src" and (TOP / "tests").is_dir()


def data(name: str) -> Path:
    """A data folder: a wheel has it in the package, a checkout at the top."""
    packed = PACKAGE / name
    return packed if packed.is_dir() else TOP / name
