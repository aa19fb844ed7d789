"""docs/rights.md has the rights that the code derives; `python -m tests.support.rights` writes them."""

import re
from pathlib import Path

from tests.support import rights


def test_the_page_has_the_rights_of_the_code() -> None:
    text = rights.PAGE.read_text(encoding="utf-8")
    assert text == rights.page(text)


def test_each_threat_names_tests_that_exist() -> None:
    named = re.findall(r"tests/[\w/]+\.py", rights.PAGE.read_text(encoding="utf-8"))
    assert len(named) > 10
    root = Path(rights.__file__).parents[2]
    assert [name for name in named if not (root / name).exists()] == []
