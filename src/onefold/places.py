"""The package's data folders (avro, sql, docs), in a wheel or in a checkout. The module imports only the standard library."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
#: The folder above `src` in a checkout. Without meaning for an installed wheel.
TOP = PACKAGE.parents[1]
CHECKOUT = PACKAGE.parent.name == "src" and (TOP / "tests").is_dir()


def data(name: str) -> Path:
    """A data folder, in the package of a wheel, or at the top of a checkout."""
    packed = PACKAGE / name
    return packed if packed.is_dir() else TOP / name
