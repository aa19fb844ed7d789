"""The product as its user has it: an embedded stack of its own that `onefold up` started. All tests of this folder share it,
in any order, so a test that has tampered with a table mends the table.

The stack runs the pipelines that Onefold brings along and those of a project.
"""

from collections.abc import Iterator

import pytest

from onefold.pipelines import PROJECT_VARIABLE
from tests.support.command_line import CANARIES, Onefold
from tests.support.examples import write_project


# Not for the session: an idle stack takes a good part of a core, also from a test that is to have the machine for itself.
@pytest.fixture(scope="package")
def onefold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onefold]:
    """The whole stack, up."""
    home, project = tmp_path_factory.mktemp("product"), tmp_path_factory.mktemp("project")
    running = Onefold(home)
    running.environment |= {**CANARIES, PROJECT_VARIABLE: str(project)}
    write_project(project)
    running("check")
    running("up")
    yield running
    running("down", "--wipe", "--yes")
