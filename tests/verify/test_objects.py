"""Which object stores the judge opens."""

from pathlib import Path

import pytest

from onefold.error_codes import Code
from onefold.verify.objects import Folder, open_store
from onefold.verify.verdict import CannotTell
from tests.support.coded import raises


def test_a_folder_is_named_by_its_path(tmp_path: Path) -> None:
    """With the characters of its name as an address has them."""
    folder = tmp_path / "my objects"
    folder.mkdir()
    assert isinstance(open_store(folder.as_uri()), Folder)


@pytest.mark.parametrize("url", ["file://host/folder", "/folder", "http:///folder", "s3:///prefix", ""])
def test_nothing_else_is_a_store(url: str) -> None:
    """A folder of another machine, a path, another scheme, a bucket without a name."""
    with raises(CannotTell, Code.SETTING_WRONG, "say file:///folder or s3://bucket/prefix"):
        open_store(url)
