"""The product as its user has it: an embedded stack of its own that `onefold up` started. All tests of this folder share it,
in any order, so a test that has tampered with a table mends the table.
"""

from collections.abc import Iterator

import pytest

from tests.support.command_line import CANARIES, Onefold


# Not for the session: an idle stack takes a good part of a core, also from a test that is to have the machine for itself.
@pytest.fixture(scope="package")
def onefold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onefold]:
    """The whole stack, up."""
    running = Onefold(tmp_path_factory.mktemp("product"))
    running.environment |= CANARIES
    running("up")
    yield running
    running("down", "--wipe", "--yes")
