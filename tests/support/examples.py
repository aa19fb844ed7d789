"""The examples of docs/examples, on stacks of their own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.command_line import ROOT, Onefold

EXAMPLES = ROOT / "docs" / "examples"


@contextmanager
def example_stack(name: str, folder: Path) -> Iterator[Onefold]:
    """A copy of the example, checked and up; down and wiped at the end."""
    project = folder / name
    shutil.copytree(EXAMPLES / name, project)
    onefold = Onefold(folder)
    onefold.environment["ONEFOLD_PROJECT"] = str(project)
    onefold("check")
    try:
        onefold("up")
        yield onefold
    finally:
        onefold("down", "--wipe", "--yes")
